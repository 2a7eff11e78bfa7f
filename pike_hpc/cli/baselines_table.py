"""What `pike-hpc baselines` says: a table for a terminal and a document, of the same rows.

Each setting's geometric mean is over its tasks: one that failed or to which the setting does not
apply counts as 1.0, because its user stays with eager; one without a verdict, or for which a
folder has no file, does not count. Of several files for a task the fastest that passed counts.
"""

from __future__ import annotations

import datetime
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pike_hpc.cli.baselines_plan import Entry
from pike_hpc.cli.evaluate import document as result_document
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import EvalResult, EvalStatus

Row = dict[str, Any]
"""One program of the JSON's `rows`."""

HEADINGS = ("task", "mode or file", "status", "tier", "speedup", "95 %", "PIKE", "KernelBench")
_MEANS: tuple[str, ...] = ("SETTING", "PASSED", "GEOMEAN", "CLAMPED", "PASSED ONLY", "TIERS")

NOISY = "noisy"
"""The tag of what was timed while others worked."""

_YES = {True: "yes", False: "no", None: ""}


def row(entry: Entry, result: EvalResult | None = None) -> Row:
    """What the JSON says of one program."""
    return {
        "task": entry.task.key,
        "name": entry.task.name,
        "setting": entry.setting,
        "kind": "mode" if entry.file is None else "solution",
        "file": entry.file,
        "rules": list(entry.rules),
        "declined": entry.declined,
        "result": None if result is None else result_document(entry.task, result),
    }


def document(
    rows: Sequence[Row],
    total: int,
    device: Device,
    arguments: Sequence[str],
    now: datetime.datetime,
    torch: str | None,
) -> dict[str, Any]:
    """What `baselines --json` prints; `total` is how many programs were to be judged."""
    return {
        "schema_version": 1,
        "command": shlex.join(["pike-hpc", *arguments]),
        "date": now.isoformat(timespec="seconds"),
        "device": {"kind": device.kind, "description": device.why},
        "torch": torch,
        "complete": len(rows) == total,
        "settings": summaries(rows),
        "rows": list(rows),
    }


def summaries(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Of each setting: how many tasks it passed, and its geometric means."""
    settings: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        settings.setdefault((each["kind"], each["setting"]), []).append(each)
    return [_summary(kind, name, own) for (kind, name), own in settings.items()]


def geomean(speedups: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    if not speedups:
        return None
    return math.exp(math.fsum(map(math.log, speedups)) / len(speedups))


def exit_code(rows: Sequence[Row]) -> int:
    """0 all passed (what does not apply here aside), 3 some did not, 1 no verdict at all."""
    judged = [found for each in rows if (found := each["result"]) is not None]
    if judged and not any(EvalStatus(found["status"]).decides for found in judged):
        return 1
    unreadable = any(each["declined"] and each["kind"] == "solution" for each in rows)
    failed = any(found["status"] != EvalStatus.PASSED.value for found in judged)
    return 3 if failed or unreadable else 0


def said(found: Row) -> str:
    """One row in a few words."""
    _, _, status, tier, speedup, *_ = _cells(found)
    return f"{status} {speedup} {tier}" if speedup else f"{status} {_reason(found)}".rstrip()


def as_text(rows: Sequence[Row], total: int | None = None) -> str:
    """Aligned columns, tags at the end of a row or why it did not pass, then the means.

    Args:
        rows: of the programs that were judged.
        total: programs that were to be judged, where the command was stopped before its end.
    """
    lines = [tuple(heading.upper() for heading in HEADINGS), *map(_cells, rows)]
    reasons = ["", *map(_reason, rows)]
    shown = []
    for line, reason in zip(_aligned(lines), reasons, strict=True):
        shown.append(f"{line}  {reason}".rstrip())
    means = [_MEANS, *(_mean_cells(summary) for summary in summaries(rows))]
    shown += ["", *(line.rstrip() for line in _aligned(means))]
    shown += ["", "geomean: failed or not applicable counts as 1.0; clamped: slower than eager too"]
    if any(NOISY in (each["result"] or {}).get("tags", ()) for each in rows):
        shown.append(
            f"{NOISY}: the machine was busy, such an interval may be wrong; judge it again"
        )
    if (total or 0) > len(rows):
        shown.append(f"stopped after {len(rows)} of {total}")
    return "\n".join(shown)


def _summary(kind: str, name: str, rows: Sequence[Row]) -> dict[str, Any]:
    best: dict[str, Mapping[str, Any] | None] = {}
    for each in rows:
        key, result = each["task"], each["result"]
        if result is not None and not EvalStatus(result["status"]).decides:
            continue  # nobody knows
        known = best.setdefault(key, None)
        timing = result and result["timing"]
        if timing and (known is None or timing["speedup"] > known["timing"]["speedup"]):
            best[key] = result
    passed = [result for result in best.values() if result is not None]
    speedups = [result["timing"]["speedup"] for result in passed]
    failed = [1.0] * (len(best) - len(passed))
    applies = any(each["declined"] is None for each in rows)
    everywhere = [*speedups, *failed] if applies else []
    return {
        "setting": name,
        "kind": kind,
        "tasks": len({each["task"] for each in rows}),
        "passed": len(passed),
        "declined": sum(each["declined"] is not None for each in rows),
        "no_verdict": len({each["task"] for each in rows} - set(best)),
        "geomean": {
            "unclamped": geomean(everywhere),
            "clamped": geomean([max(1.0, each) for each in everywhere]),
            "passed_only": geomean(speedups),
        },
        "tiers": dict(sorted(Counter(result["tier"] for result in passed).items())),
    }


def _cells(found: Row) -> tuple[str, ...]:
    """One a heading."""
    head = (_plain(found["task"]), _plain(found["file"] or found["setting"]))
    result = found["result"]
    if result is None:
        return (*head, "not judged", "", "", "", "", "")
    timing, correctness = result["timing"], result["correctness"]
    legacy = correctness["legacy"] if correctness else {}
    verdicts = [_YES[legacy.get(rule)] for rule in ("pike", "kernelbench")]
    measured = ("", "")
    if timing:
        low, high = timing["ci95"]
        measured = (f"{timing['speedup']:.2f}x", f"{low:.2f} to {high:.2f}")
    return (*head, result["status"], result["tier"] or "", *measured, *verdicts)


def _reason(found: Row) -> str:
    """Why a program did not pass, or what is to be known of one that did."""
    result = found["result"]
    if result is None:
        return _plain(found["declined"] or "")
    return _plain(", ".join(result["tags"]) if result["timing"] else result["message"])


def _mean_cells(summary: Mapping[str, Any]) -> tuple[str, ...]:
    means = summary["geomean"]
    values = [means[key] for key in ("unclamped", "clamped", "passed_only")]
    return (
        _plain(summary["setting"]),
        f"{summary['passed']} of {summary['tasks']}",
        *("-" if value is None else f"{value:.2f}x" for value in values),
        ", ".join(f"{count} {tier}" for tier, count in summary["tiers"].items()),
    )


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in lines
    ]


def _plain(text: str) -> str:
    return printable(str(text), 300)
