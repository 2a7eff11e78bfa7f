"""A run folder as the commands see it: its configuration, tasks, mailbox and journals."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pike_hpc import slurm
from pike_hpc.config import Resolved, from_run_yaml, to_run_yaml
from pike_hpc.journal import Stamped, read_task, task_slug
from pike_hpc.launch import exports, key_names, ranges
from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import CodecError, Task, UsageError, from_json, to_json
from pike_hpc.search import TaskView, replay
from pike_hpc.tasks import Suite, load_suite, parse_range, refuse_twins, select
from pike_hpc.tasks.source import check_overrides


@dataclasses.dataclass(frozen=True)
class Run:
    """An existing run folder."""

    dir: Path
    resolved: Resolved
    tasks: tuple[Task, ...]
    """As they were when the run was made: it carries their sources."""

    @classmethod
    def create(cls, folder: Path, resolved: Resolved, tasks: Sequence[Task]) -> Run:
        """Make the folder; run.yaml is written last, so that half a run is none."""
        folder = folder.absolute()
        (folder / "code").mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        lines = "".join(to_json(task) + "\n" for task in tasks)
        _write_whole(folder / "code" / "tasks.jsonl", lines)
        for name, words in (  # for jobs/*.sbatch
            ("ranges", ranges(resolved, [task.id for task in tasks])),
            ("keys", sorted(key_names(resolved))),
            ("exports", exports(resolved, "worker")),
        ):
            _write_whole(folder / "code" / f"{name}.txt", "".join(f"{word}\n" for word in words))
        _write_whole(folder / "run.yaml", to_run_yaml(resolved))
        return cls(folder, resolved, tuple(tasks))

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Raises UsageError where `folder` is no run, or one of another version."""
        path = folder / "run.yaml"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            raise UsageError(
                f"{folder} is not a run folder",
                where=str(path),
                valid="a folder that `pike-hpc submit` made, with run.yaml in it",
                fix="start one: pike-hpc submit --workflow workflows/quickstart.yaml",
            ) from None
        resolved = from_run_yaml(text, str(path))
        return cls(folder.absolute(), resolved, _read_tasks(folder / "code" / "tasks.jsonl"))

    @property
    def device_kind(self) -> str:
        """What its verdicts hold for; decided when the run was made."""
        return self.resolved.workflow.evaluate.devices[0]

    @functools.cached_property
    def mailbox(self) -> FileMailbox:
        """Its mailbox, made where missing: one for all looks, so the class has no slots."""
        asked = slurm.still_run if self.resolved.site.scheduler == "slurm" else None
        shards = self.resolved.site.mailbox.shards
        return FileMailbox(self.dir / "mailbox", jobs=asked, shards=shards)

    def events(self, task: Task) -> tuple[Stamped, ...]:
        """The journal of one task; empty before its first controller."""
        return read_task(self.dir, task_slug(task.key))

    def views(self) -> dict[str, TaskView]:
        """What is known of each task, by its key."""
        return {t.key: replay(s.event for s in self.events(t)) for t in self.tasks}

    def finished(self) -> bool:
        """Whether the search of every task is over."""
        return all(view.finished is not None for view in self.views().values())

    def chosen(self, ids: str) -> tuple[Task, ...]:
        """The tasks of this run in a RANGE. Raises UsageError for ids that are not there."""
        suite = Suite(name=self.tasks[0].suite, tasks=self.tasks)
        return select(suite, parse_range(ids))


def tasks_of(resolved: Resolved) -> tuple[tuple[Task, ...], tuple[tuple[Path, str], ...]]:
    """(tasks that a workflow names, files refused), overrides and variant applied.

    Overrides may be of tasks that the ids leave out, so that `--set tasks.ids=` names fewer.
    """
    spec = resolved.workflow.tasks
    suite = load_suite(spec.path or spec.suite or "")
    chosen = select(suite, parse_range(spec.ids or "all"))
    unknown = sorted(set(spec.shape_overrides) - {t.id for t in suite.tasks})
    if unknown:
        raise UsageError(
            f"shape_overrides names task {unknown[0]!r}, which suite {suite.name!r} has not",
            where=resolved.sources.get(f"tasks.shape_overrides.{unknown[0]}", "shape_overrides"),
            valid=", ".join(t.id for t in suite.tasks),
        )
    tasks = []
    for task in chosen:
        overrides = dict(spec.shape_overrides.get(task.id, {}))
        check_overrides(task.source, overrides, where=task.key)
        tasks.append(dataclasses.replace(task, variant=spec.variant, shape_overrides=overrides))
    refuse_twins(tasks)
    return tuple(tasks), suite.refused


def writer_id() -> str:
    """A name for this process, unique among machines and in time."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() % 10**9:09d}"


def wait_for(condition: Callable[[], bool], seconds: float, step_s: float = 0.1) -> bool:
    """Whether `condition` came true within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def _read_tasks(path: Path) -> tuple[Task, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(from_json(Task, line) for line in lines)
    except (OSError, CodecError) as error:
        raise UsageError(
            f"the run's tasks cannot be read: {error}",
            where=str(path),
            fix="restore the file from a copy of the run, or start another run",
        ) from None


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
