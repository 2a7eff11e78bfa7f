"""RANGE: which tasks of a suite, such as `1-10,17,20`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pike_hpc.records import Task, UsageError
from pike_hpc.tasks.suite import Suite

ALL = "all"
"""The RANGE that selects every task of a suite, whatever its ids."""

_SPAN = re.compile(r"(\d+)-(\d+)")


def parse_range(text: str) -> tuple[str, ...]:
    """The items of a RANGE: single ids, spans such as "1-10", or "all".

    Raises:
        UsageError: an empty item, or a span that runs backwards.
    """
    items = tuple(item.strip() for item in text.split(","))
    for item in items:
        if not item:
            raise UsageError(f"the range of tasks {text!r} has an empty item", valid="1-10,17,20")
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
        span = _SPAN.fullmatch(item)
        if item == ALL:
            found = {task.id for task in suite.tasks}
        elif span and all(task.id != item for task in suite.tasks):
            found = {
                task.id
                for task in suite.tasks
                if task.id.isdecimal() and int(span[1]) <= int(task.id) <= int(span[2])
            }
            if not found:
                raise UsageError(
                    f"suite {suite.name} has no task in {item}", valid=_ids(suite), where=None
                )
        else:
            found = {task_by_id(suite, item).id}
        chosen |= found
    return tuple(task for task in suite.tasks if task.id in chosen)


def task_by_id(suite: Suite, text: str) -> Task:
    """The task with this id, or with this file stem (`4_LeNet5`) or name.

    Raises:
        UsageError: there is none; the message names the nearest and every valid id.
    """
    wanted = str(int(text)) if text.isdecimal() else text
    for task in suite.tasks:
        if wanted in (task.id, task.name, f"{task.id}_{task.name}"):
            return task
    for path, reason in suite.refused:
        if path.stem.lstrip("0").split("_")[0] == wanted or path.stem == wanted:
            raise UsageError(f"task {suite.name}/{text} is refused: {reason}", where=str(path))
    known = {name: task for task in suite.tasks for name in (task.name.lower(), task.id.lower())}
    near = difflib.get_close_matches(wanted.lower(), known, n=1)
    raise UsageError(
        f"suite {suite.name} has no task {text!r}",
        valid=_ids(suite),
        fix=f"did you mean {known[near[0]].key} ({known[near[0]].name})?" if near else None,
    )


def _ids(suite: Suite) -> str:
    return ", ".join(task.id for task in suite.tasks)
