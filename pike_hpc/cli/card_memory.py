"""Tasks that are too large for a site's cards, told before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pike_hpc.records import Task

ADMISSION_GIB = {"level3-pike/31": 35, "level5/8": 37, "level5/12": 33, "level5/14": 52}
"""What admission took of an H100 (`pike-hpc tasks check --json`, 2026-11-28), about as it did of an
H200; every other task took less than 19."""

SMALL_PART = 0.75
"""Of a card: reference and candidate lie beside what the judge holds."""

_CARDS_GB = {"a40": 48, "l40s": 48, "h200": 141, "b200": 192}
"""Of cards whose names don't say it."""


def card_gb(gpu_model: str) -> int | None:
    """Gigabytes of a card by its name, as nvidia-a100-sxm4-40gb; None where that is not known."""
    said = re.search(r"(?:^|-)(\d+)gb(?:-|$)", gpu_model)
    if said:
        return int(said[1])
    return next((gb for card, gb in _CARDS_GB.items() if card in gpu_model.split("-")), None)


def too_large(tasks: Iterable[Task], gpu_model: str | None) -> tuple[str, ...]:
    """A line about the tasks that may not fit such a card; none where all do or nobody knows."""
    has_gb = card_gb(gpu_model or "")
    if has_gb is None:
        return ()
    large = {
        task.key: ADMISSION_GIB[task.key]
        for task in tasks
        if ADMISSION_GIB.get(task.key, 0) > SMALL_PART * has_gb
    }
    if not large:
        return ()
    named = ", ".join(f"{key} ({gib} GiB)" for key, gib in large.items())
    return (
        f"memory: {gpu_model} may be too small for {named}: take a variant of the site with a "
        f"larger card, as SITE=perlmutter:hbm80g, or leave them out of tasks.ids",
    )
