"""What one task went through, in one run or in several merged ones.

Contract: a `TaskHistory` holds everything the figures are computed from, as records. Verdicts of a
run are in the order of its journal, those of several runs merged by time. It does not know what
is best or how anything is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pike_hpc.archive import QueryRecord, RunArchive, StampedResult, TaskRecord, by_attempt
from pike_hpc.records import Declined, Proposal, Task

MADE_UP = "simulated"
"""The device kind of a run that is walked through, `worker.SIMULATED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """One task on one device kind: who proposed what, and what the judge said."""

    run_ids: tuple[str, ...]
    task: Task
    device_kind: str
    proposals: tuple[Proposal, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Candidate id to its source. Hostile text."""
    declined: tuple[Declined, ...] = ()
    verdicts: tuple[StampedResult, ...] = ()
    """The search's."""
    retimes: tuple[StampedResult, ...] = ()
    """Verdicts on candidates that were judged again."""
    queries: tuple[QueryRecord, ...] = ()
    state: str = ""

    @property
    def simulated(self) -> bool:
        """True if any verdict was made up or will be: then no number of this task is real."""
        judged = (*self.verdicts, *self.retimes)
        return self.device_kind == MADE_UP or any(v.result.simulated for v in judged)

    @property
    def operators(self) -> Mapping[str, tuple[str, ...]]:
        """Candidate id to the operators that proposed it, in order, each once."""
        found: dict[str, tuple[str, ...]] = {}
        for proposal in self.proposals:
            known = found.get(proposal.candidate_id, ())
            if proposal.operator not in known:
                found[proposal.candidate_id] = (*known, proposal.operator)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A run as far as its archive tells."""

    run_id: str
    path: str
    created: str
    """When the run began, ISO 8601, or empty."""
    config_text: str = ""
    tasks: tuple[TaskHistory, ...] = ()


def from_archive(archive: RunArchive, path: str) -> RunHistory:
    """The history that an archive tells."""
    return RunHistory(
        run_id=archive.run_id,
        path=path,
        created=archive.created,
        config_text=archive.config_text,
        tasks=tuple(h for task in archive.tasks for h in _per_device(archive.run_id, task)),
    )


def _per_device(run_id: str, record: TaskRecord) -> Iterator[TaskHistory]:
    """One history per device kind that judged; what was spent stays with the task's own kind."""
    judged = (*record.results, *record.retimes)
    kinds = [record.device_kind, *(r.result.key.device_kind for r in judged)]
    for kind in _unique(kinds):
        own = kind == record.device_kind
        yield TaskHistory(
            run_ids=(run_id,),
            task=record.task,
            device_kind=kind,
            proposals=tuple(p.proposal for p in record.proposals),
            sources=record.sources,
            declined=tuple(d.declined for d in record.declined) if own else (),
            verdicts=_of_kind(record.results, kind),
            retimes=_of_kind(record.retimes, kind),
            queries=record.queries if own else (),
            state=record.state.value,
        )


def _of_kind(verdicts: Sequence[StampedResult], kind: str) -> tuple[StampedResult, ...]:
    return by_attempt(v for v in verdicts if v.result.key.device_kind == kind)


def merge(runs: Sequence[RunHistory]) -> tuple[TaskHistory, ...]:
    """One history per task digest, device kind and simulated or not, in the order of tasks."""
    groups: dict[tuple[str, str, str, bool], list[TaskHistory]] = {}
    for run in runs:
        for history in run.tasks:
            key = (history.task.key, history.task.digest, history.device_kind, history.simulated)
            groups.setdefault(key, []).append(history)
    merged = [_join(group) for group in groups.values()]
    return tuple(sorted(merged, key=_order))


def distinct(runs: Sequence[RunHistory]) -> tuple[RunHistory, ...]:
    """Each run once, oldest first: of copies (same id and start), the one that holds most."""
    kept: dict[tuple[str, str], RunHistory] = {}
    for run in runs:
        known = kept.get((run.run_id, run.created))
        if known is None or _size(run) > _size(known):
            kept[run.run_id, run.created] = run
    return tuple(sorted(kept.values(), key=lambda r: (r.created, r.run_id)))


def _size(run: RunHistory) -> int:
    return sum(
        len(t.verdicts) + len(t.retimes) + len(t.proposals) + len(t.queries) for t in run.tasks
    )


def _join(group: Sequence[TaskHistory]) -> TaskHistory:
    first = group[0]
    if len(group) == 1:
        return first
    sources: dict[str, str] = {}
    for history in group:
        sources.update(history.sources)
    queries = sorted((q for h in group for q in h.queries), key=lambda q: q.time)
    return TaskHistory(
        run_ids=_unique(r for h in group for r in h.run_ids),
        task=first.task,
        device_kind=first.device_kind,
        proposals=tuple(p for h in group for p in h.proposals),
        sources=sources,
        declined=tuple(d for h in group for d in h.declined),
        verdicts=_by_time([h.verdicts for h in group]),
        retimes=_by_time([h.retimes for h in group]),
        queries=tuple(queries),
        state=", ".join(_unique(h.state for h in group if h.state)),
    )


def _by_time(runs: Sequence[Sequence[StampedResult]]) -> tuple[StampedResult, ...]:
    """Of several runs by time; one run's own order stays, whatever its clocks said."""
    dated: list[tuple[float, StampedResult]] = []
    for verdicts in runs:
        times = itertools.accumulate((v.time for v in verdicts), max)
        dated += zip(times, verdicts, strict=True)
    return tuple(verdict for _, verdict in sorted(dated, key=lambda each: each[0]))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _order(history: TaskHistory) -> tuple[object, ...]:
    task = history.task
    number = (0, int(task.id), "") if task.id.isdecimal() else (1, 0, task.id)
    return (
        history.simulated,
        task.variant.value,
        history.device_kind,
        task.suite,
        number,
        task.digest,
    )
