"""Which suites and tasks there are, and how a user's words find them. No torch, no execution.

A suite is shipped with the package (`level3-pike`) or any folder of KernelBench-format files;
`tasks_root` names a folder that holds such folders (a KernelBench or PIKE checkout) or files.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.records import Task, UsageError, Variant, did_you_mean
from pike_hpc.tasks.folders import Found, find_suites, folder_name
from pike_hpc.tasks.selection import (
    ALL,
    is_span,
    parse_range,
    refuse_twins,
    refused_among,
    select,
    task_by_id,
)
from pike_hpc.tasks.source import (
    apply_overrides,
    check_overrides,
    effective_source,
    module_integers,
)
from pike_hpc.tasks.suite import NotATask, Suite, read_suite, read_task

__all__ = [
    "Chosen",
    "Suite",
    "apply_overrides",
    "choose",
    "effective_source",
    "find_task",
    "load_suite",
    "module_integers",
    "parse_range",
    "refuse_twins",
    "select",
    "suites",
]

SHIPPED = Path(__file__).parent / "suites"
"""Folders of this package's own suites; level3_pike is suite level3-pike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The tasks that a user's words select."""

    tasks: tuple[Task, ...]
    refused: tuple[tuple[Path, str], ...] = ()
    """Files and folders among them that are no task: (path, reason)."""
    single: bool = False
    """Whether one task was asked for by name, and not a range, a suite or all."""


def suites(tasks_root: Path | None = None) -> tuple[str, ...]:
    """Names of the shipped suites, or of those that a tasks root holds.

    Raises:
        UsageError: the tasks root is no folder or holds no suite.
    """
    return tuple(_found(tasks_root).folders)


def load_suite(name: str | Path, *, tasks_root: Path | None = None) -> Suite:
    """The suite of this name, or in the folder that it is a path to.

    Raises:
        UsageError: no such suite, or no task in the folder.
    """
    folder, name = _place(name, tasks_root)
    suite = read_suite(folder, name)
    if not suite.tasks:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in suite.refused[:3])
        raise UsageError(
            f"no task in folder {folder}" + (f" ({reasons})" if reasons else ""),
            valid="files named <id>_<Name>.py that define Model, get_inputs and get_init_inputs",
        )
    return suite


def choose(
    text: str | None,
    *,
    tasks_root: Path | None = None,
    variant: Variant = Variant.ADMITTED,
    shape_overrides: Mapping[str, int] | None = None,
) -> Chosen:
    """The tasks of SUITE, SUITE/RANGE, a folder or a file; of every suite where `text` is None.

    Of several tasks, those that have a module-level integer of an override's name get it.

    Raises:
        UsageError: nothing is selected, an id or file that is no task, or an override that
            none of the tasks has.
    """
    overrides = dict(shape_overrides or {})
    chosen = _chosen(text, tasks_root)
    tasks = []
    for task in chosen.tasks:
        own = overrides
        if not chosen.single:
            known = module_integers(task.source) if overrides else {}
            own = {name: value for name, value in overrides.items() if name in known}
        check_overrides(task.source, own, where=task.key)
        tasks.append(dataclasses.replace(task, variant=variant, shape_overrides=own))
    used = {name for task in tasks for name in task.shape_overrides}
    if unused := sorted(set(overrides) - used):
        raise UsageError(f"shape override {unused[0]!r} is in none of the tasks")
    return dataclasses.replace(chosen, tasks=tuple(tasks))


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
    if _is_file(text):
        task = _task_file(Path(text))
    else:
        suite, task_id = _suite_and_ids(text, tasks_root)
        task = task_by_id(suite, task_id)
    overrides = dict(shape_overrides or {})
    check_overrides(task.source, overrides, where=task.key)
    return dataclasses.replace(task, variant=variant, shape_overrides=overrides)


def _chosen(text: str | None, tasks_root: Path | None) -> Chosen:
    if text is None:
        found = _found(tasks_root)
        loaded = [read_suite(folder, name) for name, folder in found.folders.items()]
        if not any(suite.tasks for suite in loaded):
            load_suite(next(iter(found.folders)), tasks_root=tasks_root)  # says why
        refused = [refusal for suite in loaded for refusal in suite.refused]
        tasks = [task for suite in loaded for task in suite.tasks]
        return Chosen(tasks=tuple(tasks), refused=(*found.refused, *refused))
    if _is_suite(text, tasks_root):
        suite = load_suite(text, tasks_root=tasks_root)
        return Chosen(tasks=suite.tasks, refused=suite.refused)
    if _is_file(text):
        return Chosen(tasks=(_task_file(Path(text)),), single=True)
    suite, ids = _suite_and_ids(text, tasks_root)
    items = parse_range(ids)
    tasks_named = select(suite, items)
    return Chosen(
        tasks=tasks_named,
        refused=refused_among(suite, items),
        single=len(items) == 1 and items[0] != ALL and not is_span(suite, items[0]),
    )


def _suite_and_ids(text: str, tasks_root: Path | None) -> tuple[Suite, str]:
    name, slash, ids = text.rpartition("/")
    if _is_suite(text, tasks_root):
        tasks = load_suite(text, tasks_root=tasks_root).tasks
        raise UsageError(
            f"{text!r} is a suite of {len(tasks)} tasks, and one of them is wanted",
            valid=", ".join(f"{text.rstrip('/')}/{task.id}" for task in tasks[:3]) + ", …",
            fix=f"pike-hpc tasks list {text} names them all",
        )
    if not slash or not name or not ids:
        raise UsageError(
            f"TASK {text!r} is neither SUITE/ID nor a file",
            valid=f"for example level3-pike/4; suites: {', '.join(suites(tasks_root))}",
            fix=did_you_mean(text, suites(tasks_root)),
        )
    return load_suite(name, tasks_root=tasks_root), ids


def _task_file(path: Path) -> Task:
    path = path.expanduser()
    if not path.is_file():
        raise UsageError(f"no task file {path}", valid="SUITE/ID or the path of a .py file")
    try:
        return read_task(path, folder_name(path.parent))
    except NotATask as error:
        raise UsageError(
            f"{path.name} is no task: {error}",
            where=str(path),
            valid="a file in KernelBench's format: class Model, get_inputs, get_init_inputs",
        ) from error


def _is_file(text: str) -> bool:
    with contextlib.suppress(OSError):
        return text.endswith(".py") or Path(text).is_file()
    return False


def _is_suite(text: str, tasks_root: Path | None) -> bool:
    """Whether the text names a suite or a folder, and not a task of one."""
    if text.strip("/") in _found(tasks_root).folders:
        return True
    with contextlib.suppress(OSError):  # too long for a path
        if tasks_root is not None and (tasks_root.expanduser() / text).is_dir():
            return True
        return Path(text).expanduser().is_dir()
    return False


def _is_path(text: str) -> bool:
    """Whether the text can only mean a path, existing or not."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def _place(name: str | Path, tasks_root: Path | None) -> tuple[Path, str]:
    """(folder, name) of the suite that a name or a path means. Raises UsageError."""
    path = Path(name).expanduser()
    if tasks_root is None or path.is_absolute():
        shipped = tasks_root is None and str(name) in _found(None).folders
        if _is_path(str(name)) or (path.is_dir() and not shipped):
            return _suite_at(path)
    folders = _found(tasks_root).folders
    text = str(name).strip("/")
    if text in folders:
        return folders[text], text
    if tasks_root is not None and (tasks_root.expanduser() / text).is_dir():
        return _suite_at(tasks_root.expanduser() / text)
    raise UsageError(
        f"no suite {text!r}" + (f" in {tasks_root}" if tasks_root else ""),
        valid=", ".join(folders) + ("" if tasks_root else ", or a folder of task files"),
        fix=did_you_mean(text, folders)
        or (None if tasks_root else "name a folder of your own by its path (workflows: `path:`)"),
    )


def _suite_at(folder: Path) -> tuple[Path, str]:
    """The suite in this very folder; of a folder that holds only folders, the one in it."""
    folders = find_suites(folder).folders
    if folder in folders.values():
        return folder, folder_name(folder)
    if len(folders) == 1:
        name, only = next(iter(folders.items()))
        return only, name
    raise UsageError(
        f"{folder} holds several suites",
        valid=", ".join(str(path) for path in folders.values()),
        fix="name one of them",
    )


def _found(tasks_root: Path | None) -> Found:
    """The suites of a tasks root, or the shipped ones."""
    if tasks_root is not None:
        return find_suites(tasks_root)
    shipped = sorted(path for path in SHIPPED.iterdir() if path.is_dir())
    return Found(
        folders={path.name.replace("_", "-"): path for path in shipped if path.name[0] != "_"}
    )
