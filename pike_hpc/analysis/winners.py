"""What won, as files: each task's programs exactly as they were judged, and a line about each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pike_hpc.analysis.metrics import Best
from pike_hpc.analysis.report import Report, TaskReport
from pike_hpc.records import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerFile:
    """One program that won."""

    name: str
    """Of letters, digits and hyphens; no two of a report are alike, whatever the file system."""
    task: TaskReport
    best: Best

    @property
    def source(self) -> str:
        """Hostile text."""
        return self.best.source

    @property
    def row(self) -> dict[str, Any]:
        """What tells it from a file that an earlier report has left in the folder."""
        return {
            "file": self.name,
            "task": self.task.label,
            "variant": self.task.variant,
            "device": self.task.device,
            "simulated": self.task.simulated,
            "tier": self.best.tier,
            "speedup": self.best.speedup,
            "ci95_low": self.best.ci95[0],
            "ci95_high": self.best.ci95[1],
            "retimed": self.best.retimed,
            "candidate": self.best.candidate,
        }


def winners(report: Report) -> tuple[WinnerFile, ...]:
    """Of every task, strictest tier first; none of what the archive holds no source of."""
    found: list[WinnerFile] = []
    taken: set[str] = set()
    for task in (task for group in report.groups for task in group.tasks):
        for best in (best for best in task.winners if best.source):
            model = task.name.removeprefix(f"{task.history.task.id}_")
            words = re.sub(r"[^A-Za-z0-9]+", "-", f"{task.label} {model} {task.device}")
            stem = f"{words.strip('-')[:150]}-{best.tier}"
            if stem.casefold() in taken:
                stem += f"-{digest(task.variant, best.source)[:8]}"
            taken.add(stem.casefold())
            found.append(WinnerFile(name=f"{stem}.py", task=task, best=best))
    return tuple(found)
