"""A suite: a folder of files in KernelBench's format, one task each.

`<id>_<Name>.py` gives a task its id and name; a file without a number has its stem as both.
A file that is no task is a named refusal and the rest of the folder still loads. Nothing is
executed and no torch is needed. Does not know which suites exist: that is `folders` and `spec`.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.records import MAX_SOURCE_BYTES, Task, UsageError
from pike_hpc.tasks.source import defects

NUMBERED = re.compile(r"([0-9]+)_(.+)\.py")
"""A file name in KernelBench's format."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What a name that ends in .py can stand for, other than a file. Opening a pipe would wait."""


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
        match = re.match(r"level(\d+)", self.name.rpartition("/")[2])
        return int(match[1]) if match else None


class NotATask(Exception):
    """The reason why a file is no task."""


def read_suite(folder: Path, name: str) -> Suite:
    """Every task of the folder (not of folders in it); maybe none.

    Raises:
        UsageError: the folder cannot be read.
    """
    tasks: dict[str, Task] = {}
    refused: list[tuple[Path, str]] = []
    try:
        files = [Path(e.path) for e in os.scandir(folder) if is_task_name(e.name)]
    except OSError as error:
        raise UsageError(f"cannot read the folder: {error.strerror}", where=str(folder)) from None
    for path in sorted(files, key=_order):
        try:
            task = read_task(path, name)
            if task.id in tasks:
                raise NotATask(
                    f"id {task.id} is taken by {tasks[task.id].name}; name this file by its path"
                )
            tasks[task.id] = task
        except NotATask as error:
            refused.append((path, str(error)))
    return Suite(name=name, tasks=tuple(tasks.values()), refused=tuple(refused))


def read_task(path: Path, suite: str) -> Task:
    """One file as a task. Raises NotATask."""
    if not path.name.isprintable():
        raise NotATask("its name has characters that cannot be shown; rename it")
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            raise NotATask(f"it is {kind}, not a file")
        if found.st_size > MAX_SOURCE_BYTES:
            raise NotATask(f"{found.st_size} bytes; at most {MAX_SOURCE_BYTES}")
        raw = path.read_bytes()
        source = raw.decode("utf-8-sig")
    except OSError as error:
        raise NotATask(f"unreadable: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NotATask(f"not UTF-8 text (byte {error.start})") from error
    if len(raw) > MAX_SOURCE_BYTES:  # what is written while it is read, or has no size
        raise NotATask(f"{len(raw)} bytes; at most {MAX_SOURCE_BYTES}")
    if (reason := defects(source)) is not None:
        raise NotATask(reason)
    task_id, name = identify(path.stem)
    return Task(suite=suite, id=task_id, name=name, source=source)


def identify(stem: str) -> tuple[str, str]:
    """(id, name) by a file's stem: 04_LeNet5 is ("4", "LeNet5"), mine is ("mine", "mine")."""
    match = NUMBERED.fullmatch(f"{stem}.py")
    if match:
        return canonical(match[1]), match[2].rstrip("_") or match[2]
    return canonical(stem), stem


def canonical(text: str) -> str:
    """An id as tasks carry it: a number without its leading zeros, anything else as it is."""
    return (text.lstrip("0") or "0") if text.isascii() and text.isdecimal() else text


def is_task_name(name: str) -> bool:
    """Whether a file of this name may be a task: private and hidden ones are not."""
    return name.endswith(".py") and name[0] not in "._"


def _order(path: Path) -> tuple[int, int, str]:
    """Numbered files first, by number."""
    number = identify(path.stem)[0]
    known = number.isascii() and number.isdecimal()
    return (0, int(number), path.name) if known else (1, 0, path.name)
