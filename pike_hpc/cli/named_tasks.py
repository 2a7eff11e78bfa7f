"""The tasks that a workflow names, or where it is written that they are not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pike_hpc.cli.run import tasks_of
from pike_hpc.config import Resolved
from pike_hpc.records import Task, UsageError
from pike_hpc.tasks import load_suite


def named_tasks(resolved: Resolved) -> tuple[tuple[Task, ...], tuple[tuple[Path, str], ...]]:
    """(tasks that a workflow names, files refused), as `tasks_of` finds them.

    Raises:
        UsageError: there are no such tasks; it names the line that says so.
    """
    spec = resolved.workflow.tasks
    with _written_at(resolved.sources.get("tasks.path" if spec.path else "tasks.suite")):
        load_suite(spec.path or spec.suite or "")
    with _written_at(resolved.sources.get("tasks.ids")):
        return tasks_of(resolved)


@contextlib.contextmanager
def _written_at(where: str | None) -> Iterator[None]:
    """A mistake inside that names no place is one of what is written there."""
    try:
        yield
    except UsageError as error:
        place = error.where or where
        raise UsageError(error.what, where=place, valid=error.valid, fix=error.fix) from None
