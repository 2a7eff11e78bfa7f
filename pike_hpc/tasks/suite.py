"""A suite: a folder of files in KernelBench's format, one task each.

`<id>_<Name>.py` gives a task its id and name; a file without a number has its stem as both.
A file that is no task is a named refusal and the rest of the folder still loads. Nothing is
executed and no torch is needed. Does not know which suites exist: that is `spec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.records import MAX_SOURCE_BYTES, Task, UsageError
from pike_hpc.tasks.source import defects

NUMBERED = re.compile(r"(\d+)_(.+)\.py")
"""A file name in KernelBench's format."""

MAX_DEPTH = 3
"""How far below a tasks root suites are looked for (KernelBench/level3 is 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tasks of one folder, by number and then by name."""

    name: str
    tasks: tuple[Task, ...]
    refused: tuple[tuple[Path, str], ...] = ()
    """Files that are no task: (path, reason)."""

    @property
    def level(self) -> int | None:
        """KernelBench's level, from a name such as level3-pike."""
        match = re.match(r"level(\d+)", self.name)
        return int(match[1]) if match else None


class NotATask(Exception):
    """The reason why a file is no task."""


def read_suite(folder: Path, name: str) -> Suite:
    """Every task of the folder (not of folders in it).

    Raises:
        UsageError: the folder holds no task at all.
    """
    tasks: dict[str, Task] = {}
    refused: list[tuple[Path, str]] = []
    for path in sorted(_python_files(folder), key=_order):
        try:
            task = read_task(path, name)
            if task.id in tasks:
                raise NotATask(f"id {task.id} is taken by {tasks[task.id].name}")
            tasks[task.id] = task
        except NotATask as error:
            refused.append((path, str(error)))
    if not tasks:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in refused[:3])
        raise UsageError(
            f"no task in folder {folder}" + (f" ({reasons})" if reasons else ""),
            valid="files named <id>_<Name>.py that define Model, get_inputs and get_init_inputs",
        )
    return Suite(name=name, tasks=tuple(tasks.values()), refused=tuple(refused))


def read_task(path: Path, suite: str) -> Task:
    """One file as a task. Raises NotATask."""
    try:
        raw = path.read_bytes()
        source = raw.decode("utf-8-sig")
    except OSError as error:
        raise NotATask(f"unreadable: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NotATask(f"not UTF-8 text (byte {error.start})") from error
    if len(raw) > MAX_SOURCE_BYTES:
        raise NotATask(f"{len(raw)} bytes; at most {MAX_SOURCE_BYTES}")
    if (reason := defects(source)) is not None:
        raise NotATask(reason)
    task_id, name = identify(path)
    return Task(suite=suite, id=task_id, name=name, source=source)


def identify(path: Path) -> tuple[str, str]:
    """(id, name) by the file's name: 04_LeNet5.py is ("4", "LeNet5"), mine.py ("mine", "mine")."""
    match = NUMBERED.fullmatch(path.name)
    return (str(int(match[1])), match[2].rstrip("_")) if match else (path.stem, path.stem)


def suite_folders(root: Path) -> Iterator[Path]:
    """Folders below the root, itself included, that hold numbered task files; shallow first."""
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            if any(NUMBERED.fullmatch(path.name) for path in _python_files(folder)):
                yield folder
            below += [p for p in folder.iterdir() if p.is_dir() and p.name[0] not in "._"]
        level = sorted(below)


def _python_files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if path.suffix == ".py" and path.name[0] not in "._" and path.is_file()
    ]


def _order(path: Path) -> tuple[int, int, str]:
    """Numbered files first, by number."""
    match = NUMBERED.fullmatch(path.name)
    return (0, int(match[1]), path.name) if match else (1, 0, path.name)
