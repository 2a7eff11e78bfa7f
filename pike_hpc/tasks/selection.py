"""RANGE: which tasks of a suite, such as `1-10,17,20`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from pike_hpc.records import Task, UsageError
from pike_hpc.tasks.suite import Suite, canonical, identify

ALL = "all"
"""The RANGE that selects every task of a suite, whatever its ids."""

_SPAN = re.compile(r"([0-9]+)-([0-9]+)")
_MAX_DIGITS = 300
"""A file's name has at most 255 bytes: a longer number is nobody's id."""


def parse_range(text: str) -> tuple[str, ...]:
    """The items of a RANGE: single ids, spans such as "1-10", or "all".

    Raises:
        UsageError: an empty item, or a span that runs backwards.
    """
    items = tuple(item.strip() for item in text.split(","))
    for item in items:
        if not item:
            raise UsageError(f"the range of tasks {text!r} has an empty item", valid="1-10,17,20")
        if len(item) > _MAX_DIGITS:
            raise UsageError(f"the range of tasks {item[:40]!r}… is too long", valid="1-10,17,20")
        span = _SPAN.fullmatch(item)
        if span and int(span[1]) > int(span[2]):
            raise UsageError(
                f"the range of tasks {item!r} runs backwards", valid=f"{span[2]}-{span[1]}"
            )
    return items


def select(suite: Suite, items: Sequence[str]) -> tuple[Task, ...]:
    """The tasks that the items of a RANGE name, each once, in the suite's order.

    A span selects those of its ids that exist; a single id must exist.

    Raises:
        UsageError: an id that does not exist or was refused, or a span that selects nothing.
    """
    chosen: set[str] = set()
    for item in items:
        if item == ALL:
            found = {task.id for task in suite.tasks}
        elif is_span(suite, item):
            found = {task.id for task in suite.tasks if _spans(item, task.id)}
            if not found:
                raise UsageError(
                    f"suite {suite.name} has no task in {item}", valid=_ids(suite), where=None
                )
        else:
            found = {task_by_id(suite, item).id}
        chosen |= found
    return tuple(task for task in suite.tasks if task.id in chosen)


def is_span(suite: Suite, item: str) -> bool:
    """Whether an item of a RANGE is a span, and not the id of a file called 1-10.py."""
    return _SPAN.fullmatch(item) is not None and all(task.id != item for task in suite.tasks)


def refused_among(suite: Suite, items: Sequence[str]) -> tuple[tuple[Path, str], ...]:
    """The suite's refused files that the items of a RANGE would have selected."""
    spans = [item for item in items if is_span(suite, item)]
    return tuple(
        (path, reason)
        for path, reason in suite.refused
        if ALL in items or any(_spans(item, identify(path.stem)[0]) for item in spans)
    )


def refuse_twins(tasks: Sequence[Task]) -> None:
    """Two equal tasks in one run would be one request, whose verdict only one of them hears.

    Raises:
        UsageError: naming both.
    """
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.setdefault(task.digest, task)
        if other is not task:
            raise UsageError(
                f"two tasks are the same program: {_file(other)} and {_file(task)}",
                where=f"suite {task.suite}",
                valid="each program once in a run",
                fix="remove one of the two files, or leave one out with tasks.ids",
            )


def _file(task: Task) -> str:
    """As its file is called, leading zeros aside."""
    return f"{task.id}.py" if task.name == task.id else f"{task.id}_{task.name}.py"


def task_by_id(suite: Suite, text: str) -> Task:
    """The task with this id; else with this file stem (`4_LeNet5`), else with this name.

    Raises:
        UsageError: there is none; the message names the nearest and every valid id.
    """
    wanted, name = canonical(text), identify(text)
    for task in suite.tasks:
        if task.id == wanted:
            return task
    named = [task for task in suite.tasks if (task.id, task.name) == name]
    named = named or [task for task in suite.tasks if task.name == text]
    if len(named) == 1:
        return named[0]
    if named:
        raise UsageError(
            f"suite {suite.name} has {len(named)} tasks called {text!r}",
            valid=", ".join(task.id for task in named),
            fix="name one of them by its id",
        )
    for path, reason in suite.refused:
        if wanted in (identify(path.stem)[0], path.stem):
            raise UsageError(f"task {suite.name}/{text} is refused: {reason}", where=str(path))
    known = {name: task for task in suite.tasks for name in (task.name.lower(), task.id.lower())}
    near = difflib.get_close_matches(wanted.lower(), known, n=1)
    raise UsageError(
        f"suite {suite.name} has no task {text!r}",
        valid=_ids(suite),
        fix=f"did you mean {known[near[0]].key} ({known[near[0]].name})?" if near else None,
    )


def _spans(item: str, task_id: str) -> bool:
    span = _SPAN.fullmatch(item)
    known = task_id.isascii() and task_id.isdecimal()
    return span is not None and known and int(span[1]) <= int(task_id) <= int(span[2])


def _ids(suite: Suite) -> str:
    return ", ".join(task.id for task in suite.tasks)
