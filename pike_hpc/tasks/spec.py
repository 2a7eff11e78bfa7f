"""Which suites and tasks there are, and how a user's words find them. No torch, no execution.

A suite is shipped with the package (`level3-pike`) or any folder of KernelBench-format files;
`tasks_root` names a folder that holds such folders (a KernelBench or PIKE checkout) or files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from pike_hpc.records import Task, UsageError, Variant, did_you_mean
from pike_hpc.tasks.selection import parse_range, select, task_by_id
from pike_hpc.tasks.source import (
    apply_overrides,
    check_overrides,
    effective_source,
    module_integers,
)
from pike_hpc.tasks.suite import NotATask, Suite, read_suite, read_task, suite_folders

__all__ = [
    "Suite",
    "apply_overrides",
    "effective_source",
    "find_task",
    "load_suite",
    "module_integers",
    "parse_range",
    "select",
    "suites",
]

SHIPPED = Path(__file__).parent / "suites"
"""Folders of this package's own suites; level3_pike is suite level3-pike."""


def suites(tasks_root: Path | None = None) -> tuple[str, ...]:
    """Names of the shipped suites, or of those that a tasks root holds.

    Raises:
        UsageError: the tasks root is no folder or holds no suite.
    """
    return tuple(_folders(tasks_root))


def load_suite(name: str | Path, *, tasks_root: Path | None = None) -> Suite:
    """The suite of this name, or in the folder that it is a path to.

    Raises:
        UsageError: no such suite, or no task in the folder.
    """
    if tasks_root is None or Path(name).is_absolute():
        folder = Path(name)
        if _is_path(str(name)) or (str(name) not in _folders(None) and folder.is_dir()):
            return _suite_at(folder)
    folders = _folders(tasks_root)
    text = str(name).strip("/")
    if text in folders:
        return read_suite(folders[text], text.rpartition("/")[2])
    if tasks_root is not None and (tasks_root / text).is_dir():
        return _suite_at(tasks_root / text)
    raise UsageError(
        f"no suite {text!r}" + (f" in {tasks_root}" if tasks_root else ""),
        valid=", ".join(folders) + ("" if tasks_root else ", or a folder of task files"),
        fix=did_you_mean(text, folders),
    )


def find_task(
    text: str,
    *,
    tasks_root: Path | None = None,
    variant: Variant = Variant.ADMITTED,
    shape_overrides: Mapping[str, int] | None = None,
) -> Task:
    """The task that TASK names: SUITE/ID, or the path of a file in KernelBench's format.

    Raises:
        UsageError: no such suite, id or file, a file that is no task, or an override of a name
            that is no module-level integer of it.
    """
    task = _task_file(Path(text)) if _is_file(text) else _task_of_suite(text, tasks_root)
    overrides = dict(shape_overrides or {})
    check_overrides(task.source, overrides, where=task.key)
    return dataclasses.replace(task, variant=variant, shape_overrides=overrides)


def _task_of_suite(text: str, tasks_root: Path | None) -> Task:
    suite, slash, task_id = text.rpartition("/")
    if not slash or not suite or not task_id:
        raise UsageError(
            f"TASK {text!r} is neither SUITE/ID nor a file",
            valid=f"for example level3-pike/4; suites: {', '.join(suites(tasks_root))}",
        )
    return task_by_id(load_suite(suite, tasks_root=tasks_root), task_id)


def _task_file(path: Path) -> Task:
    if not path.is_file():
        raise UsageError(f"no task file {path}", valid="SUITE/ID or the path of a .py file")
    try:
        return read_task(path, path.resolve().parent.name or "file")
    except NotATask as error:
        raise UsageError(
            f"{path.name} is no task: {error}",
            where=str(path),
            valid="a file in KernelBench's format: class Model, get_inputs, get_init_inputs",
        ) from error


def _is_file(text: str) -> bool:
    return text.endswith(".py") or (Path(text).is_file())


def _is_path(text: str) -> bool:
    """Whether the text can only mean a path, existing or not."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def _suite_at(folder: Path) -> Suite:
    """The suite in this very folder; of a folder that holds only folders, the one in it."""
    folder = folder.expanduser()
    folders = _folders(folder)
    here = [path for path in folders.values() if path == folder]
    if here or not folders:
        return read_suite(folder, folder.resolve().name)
    if len(folders) == 1:
        name, only = next(iter(folders.items()))
        return read_suite(only, name)
    raise UsageError(
        f"{folder} holds several suites",
        valid=", ".join(str(path) for path in folders.values()),
        fix="name one of them",
    )


def _folders(tasks_root: Path | None) -> dict[str, Path]:
    """Suite name to folder, in order; a name seen twice is told apart by its path in the root."""
    if tasks_root is None:
        shipped = sorted(path for path in SHIPPED.iterdir() if path.is_dir())
        return {path.name.replace("_", "-"): path for path in shipped if path.name[0] != "_"}
    root = tasks_root.expanduser()
    if not root.is_dir():
        raise UsageError(f"no folder {tasks_root}", where="tasks root")
    try:
        found = list(suite_folders(root))
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error
    names = [path.resolve().name for path in found]
    folders = {
        name if names.count(name) == 1 else str(path.relative_to(root)): path
        for name, path in zip(names, found, strict=True)
    }
    return folders or {root.resolve().name: root}
