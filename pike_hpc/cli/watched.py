"""A run that one process looks at time and again: what hasn't changed is not read again.

A follower looks several times a second, on the machine whose CPU timings count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pike_hpc.cli.run import Run
from pike_hpc.journal import Stamped, task_slug, watermark
from pike_hpc.records import Task
from pike_hpc.search import TaskView, replay


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
    """A task's journal as it was read."""

    mark: Mapping[str, int]
    """Its segments' sizes before that: they only grow."""
    events: tuple[Stamped, ...]
    view: TaskView
    """Nobody's to change: the next look gets it, too."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedRun(Run):
    """Of one process. Equal looks give the very same objects."""

    _known: dict[str, _Read] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run) -> WatchedRun:
        """The same run, nothing read yet; itself where it is watched already."""
        return run if isinstance(run, cls) else cls(run.dir, run.resolved, run.tasks)

    def events(self, task: Task) -> tuple[Stamped, ...]:
        """The journal of one task."""
        return self._look(task, watermark(self.dir)).events

    def views(self) -> dict[str, TaskView]:
        """What is known of each task, by its key."""
        sizes = watermark(self.dir)
        return {task.key: self._look(task, sizes).view for task in self.tasks}

    def journals(self) -> dict[str, tuple[Stamped, ...]]:
        """The journal of each task, by its key."""
        sizes = watermark(self.dir)
        return {task.key: self._look(task, sizes).events for task in self.tasks}

    def _look(self, task: Task, sizes: Mapping[str, int]) -> _Read:
        beginning = f"{task_slug(task.key)}.e"
        mark = {name: size for name, size in sizes.items() if name.startswith(beginning)}
        known = self._known.get(task.key)
        if known is None or known.mark != mark:
            # Not super(): a dataclass with slots is another class than the one that it is made of.
            events = Run.events(self, task)
            known = _Read(mark, events, replay(stamped.event for stamped in events))
            self._known[task.key] = known
        return known
