"""Which task a published solution is for, by its name and folder. Nothing is executed.

Names seen in the wild: `task_4.py` in `level_3/` (METR, PIKE's best solutions), `4_LeNet5.py`
(KernelBench), `level3_4.py`, `4.py`, `LeNet5.py`; and programs called `kernel.py` or
`best_program.py` in or below a folder `task_4` (PIKE's run folders). What names no task is
said, with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from pike_hpc.records import Task, UsageError
from pike_hpc.tasks import Suite

_VALID = "task_4.py, 4.py, 4_LeNet5.py, level3_4.py, or any name in a folder task_4"
_LEVEL = re.compile(r"(?:.*[_-])?level[_-]?([0-9]+)(?:[_-].*)?")
"""A folder of a level: level3, level_3, level3-pike, h100_level_3-pike."""
_LEVELLED = re.compile(r"level[_-]?([0-9]+)[_-](?:[a-z]+_)??((?:task|problem|[0-9]).*)")
_TASK = re.compile(r"(?:task|problem)[_-]?([0-9]+)(?:[_-].*)?")
_NUMBERED = re.compile(r"([0-9]+)(?:_(.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A file, and the task that it is for."""

    path: Path
    label: str
    """Its path below the folder."""
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """What a folder holds."""

    folder: Path
    solutions: tuple[Solution, ...]
    """In the order of their tasks, then by label."""
    unmatched: tuple[tuple[Path, str], ...]
    """Python files for none of the tasks: (path, reason)."""


def match_folder(folder: Path, tasks: Sequence[Task]) -> Matched:
    """The solutions below a folder for any of `tasks`, which are of one suite.

    Raises:
        UsageError: no folder, or no file in it is for one of the tasks.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {folder} of solutions", valid=f"a folder with {_VALID}")
    found: list[Solution] = []
    unmatched: list[tuple[Path, str]] = []
    for path in _python_files(folder):
        label = path.relative_to(folder)
        task = task_of(PurePath(folder.resolve().name) / label, tasks)
        if isinstance(task, Task):
            found.append(Solution(path=path, label=str(label), task=task))
        else:
            unmatched.append((path, task))
    if not found:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in unmatched[:3])
        raise UsageError(
            f"no solution for these tasks in {folder}" + (f" ({reasons})" if reasons else ""),
            valid=_VALID,
        )
    order = {task.key: number for number, task in enumerate(tasks)}
    found.sort(key=lambda s: (order[s.task.key], s.label))
    return Matched(folder=folder, solutions=tuple(found), unmatched=tuple(unmatched))


def task_of(path: PurePath, tasks: Sequence[Task]) -> Task | str:
    """The task that a file is for, or the reason why it is for none of them."""
    suite = Suite(name=tasks[0].suite, tasks=tuple(tasks))
    level, stem = None, path.stem
    if levelled := _LEVELLED.fullmatch(stem):
        level, stem = int(levelled[1]), levelled[2]
    if level is None:
        levels = (_LEVEL.fullmatch(part) for part in reversed(path.parent.parts))
        level = next((int(each[1]) for each in levels if each), None)
    if None not in (level, suite.level) and level != suite.level:
        return f"it is for level {level}, and these tasks are of {suite.name}"
    found = _named(stem, suite)
    for part in reversed(path.parent.parts) if found is None else ():
        if folder := _TASK.fullmatch(part):
            found = _by_id(folder[1], suite)
            break
    return found or f"its name says no task; valid: {_VALID}"


def _named(stem: str, suite: Suite) -> Task | str | None:
    """The task that a stem names, why it names none of the suite's, or None: it names nothing."""
    for task in suite.tasks:
        if stem.lower() in (task.id.lower(), task.name.lower()):
            return task
    if match := _TASK.fullmatch(stem):
        return _by_id(match[1], suite)
    if match := _NUMBERED.fullmatch(stem):
        number, name = match[1], match[2] or ""
        if name.isdecimal():
            return f"{stem} may mean task {int(number)} or task {int(name)}; call it task_N.py"
        found = _by_id(number, suite)
        other = [t for t in suite.tasks if t.name.lower() == name.lower()]
        if isinstance(found, Task) and other and found not in other:
            return f"task {found.id} is {found.name}, and {name} is task {other[0].id}"
        return found
    return None


def _by_id(number: str, suite: Suite) -> Task | str:
    wanted = number.lstrip("0") or "0"
    for task in suite.tasks:
        if task.id == wanted:
            return task
    return f"task {wanted} of {suite.name} is not among the tasks asked for"


def _python_files(folder: Path) -> list[Path]:
    """Every Python file below it, hidden ones and packages' own left out; links not followed."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        found += [
            Path(place, name)
            for name in sorted(names)
            if name.endswith(".py") and not name.startswith((".", "_"))
        ]
    return found
