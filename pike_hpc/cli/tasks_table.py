"""The table of `tasks check`: for a terminal, and in markdown from the JSON it wrote.

Both have the same rows, made of the JSON's: what a person reads is what was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pike_hpc.evaluate.screen import printable

Row = Mapping[str, Any]
"""One task of the JSON's `tasks`."""

HEADINGS = (
    "task",
    "name",
    "admitted",
    "tiers and where they end",
    "signal",
    "noise",
    "mildest mutant",
    "reference",
    "seconds",
    "notes",
)
MAX_REASON = 400


def as_text(
    rows: Sequence[Row], refused: Sequence[Mapping[str, str]] = (), total: int | None = None
) -> str:
    """Aligned columns; a refusal is one line with its reason; counts at the end.

    Args:
        rows: of the tasks that were checked.
        refused: files that are no task.
        total: tasks that were to be checked, where a check was stopped before its end.
    """
    lines = [tuple(h.upper() for h in HEADINGS), *(_cells(row) for row in rows)]
    widths = [
        max(len(cells[i]) for cells in lines if _is_full(cells)) for i in range(len(HEADINGS))
    ]
    widths[:3] = [max(len(cells[i]) for cells in lines) for i in range(3)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()
        for cells in lines
    ]
    shown += [f"refused {_plain(r['path'])}: {_plain(r['reason'])}" for r in refused]
    stopped = f"; stopped after {len(rows)} of {total}" if (total or 0) > len(rows) else ""
    return "\n".join([*shown, "", count(rows) + stopped])


def as_markdown(document: Mapping[str, Any]) -> str:
    """The measured table, where and how it was measured, and what was refused."""
    rows = document["tasks"]
    lines = [
        f"Measured on {document['device']['kind']} with torch {document['torch']}, "
        f"{document['date'][:10]}: {count(rows)}."
        + ("" if document["complete"] else " Stopped before its end: absent tasks were not tried."),
        "",
        f"    {document['command']}",
        "",
        f"Digest of the code measured: `{document['code_digest']}`.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    for row in rows:
        cells = list(_cells(row))
        cells = cells if _is_full(cells) else [*cells[:3], *[""] * 6, cells[3]]
        lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
    return "\n".join(lines) + "\n"


def count(rows: Sequence[Row]) -> str:
    """How many were admitted, and which were not: `47 of 49 admitted; refused: a/1, a/2`."""
    admitted = sum(row["admitted"] is True for row in rows)
    said = [f"{admitted} of {len(rows)} admitted"]
    for verdict, word in ((False, "refused"), (None, "not tried here")):
        keys = [_plain(row["task"]) for row in rows if row["admitted"] is verdict]
        said += [f"{word}: {', '.join(keys)}"] if keys else []
    if any(row["variant"] == "legacy" for row in rows):
        said.append("legacy: PIKE's inputs, weights and rule, never in a headline")
    return "; ".join(said)


def verdict(row: Row) -> str:
    """yes, refused or not tried; legacy is marked."""
    word = {True: "yes", False: "refused", None: "not tried"}[row["admitted"]]
    return f"{word} (legacy)" if row["variant"] == "legacy" else word


def _cells(row: Row) -> tuple[str, ...]:
    """Of a row that was admitted, one a heading; else task, name, verdict and reason."""
    head = (_plain(row["task"]), _plain(row["name"]), verdict(row))
    if not row["admitted"]:
        return (*head, _plain(row["reason"]))
    mildest = min(row["mutants"].items(), key=lambda item: item[1], default=None)
    return (
        *head,
        ", ".join(f"{tier} {_short(size)}" for tier, size in row["limits"].items()),
        _short(row["signal"]),
        _short(row["noise"]),
        f"{_short(mildest[1])} {_plain(mildest[0])}" if mildest else "none",
        _plain(row["reference_precision"]),
        f"{row['seconds']:.{1 if row['seconds'] >= 1 else 2}f}",
        "; ".join(_notes(row)),
    )


def _notes(row: Row) -> list[str]:
    said = [f"{name}={value}" for name, value in row["shape_overrides"].items()]
    if row["native_precision"] != "float32":
        said.append(row["native_precision"])
    if row["calibrated"]:
        said.append(f"{row['calibrated']} BatchNorm calibrated")
    if row["resets_state"]:
        said.append("state reset between calls")
    said += [f"no {_plain(tier)}: {_plain(why)}" for tier, why in row["inadmissible"].items()]
    if row["not_applicable"]:
        said.append(f"not applicable: {', '.join(map(_plain, row['not_applicable']))}")
    return said


def _is_full(cells: Sequence[str]) -> bool:
    return len(cells) == len(HEADINGS)


def _short(value: float) -> str:
    """Two significant digits."""
    return f"{value:.2g}"


def _escaped(cell: str) -> str:
    """Text that markdown shows as it is, on one line of a table."""
    return re.sub(r"[\\`*<|\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", cell)


def _plain(text: str) -> str:
    return printable(str(text), MAX_REASON)
