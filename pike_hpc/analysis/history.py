"""What one task went through, in one run or in several merged ones.

Contract: a `TaskHistory` holds everything the figures are computed from, in time order, as
records. It does not know where it was read from, what is best, or how anything is shown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pike_hpc.records import Declined, EvalResult, Proposal, Task, Usage


class QueryState(enum.StrEnum):
    """What became of a model query."""

    ANSWERED = "answered"
    FAILED = "failed"
    LOST = "lost"
    """The controller died while it was in flight: what it cost is unknown."""
    OPEN = "open"
    """Reserved, without an outcome yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A result and when it became final."""

    result: EvalResult
    time_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One model query as the ledger has it."""

    query_id: str
    role: str
    model: str
    state: QueryState
    usage: Usage | None = None
    max_cost_usd: float = 0.0
    """What was reserved for it before it was sent."""
    charged: bool = True
    """False where the provider gave no answer and takes no money for that."""
    latency_s: float = 0.0
    time_s: float = 0.0


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
    verdicts: tuple[Verdict, ...] = ()
    queries: tuple[Query, ...] = ()
    state: str = ""

    @property
    def simulated(self) -> bool:
        """True if any verdict was made up: then no number of this task is real."""
        return any(v.result.simulated for v in self.verdicts)

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
    """Each run once, oldest first: of copies with one id, the one that holds most."""
    kept: dict[str, RunHistory] = {}
    for run in runs:
        known = kept.get(run.run_id)
        if known is None or _size(run) > _size(known):
            kept[run.run_id] = run
    return tuple(sorted(kept.values(), key=lambda r: (r.created, r.run_id)))


def _size(run: RunHistory) -> int:
    return sum(len(t.verdicts) + len(t.proposals) + len(t.queries) for t in run.tasks)


def _join(group: Sequence[TaskHistory]) -> TaskHistory:
    first = group[0]
    if len(group) == 1:
        return first
    sources: dict[str, str] = {}
    for history in group:
        sources.update(history.sources)
    verdicts = sorted((v for h in group for v in h.verdicts), key=lambda v: v.time_s)
    queries = sorted((q for h in group for q in h.queries), key=lambda q: q.time_s)
    return TaskHistory(
        run_ids=_unique(r for h in group for r in h.run_ids),
        task=first.task,
        device_kind=first.device_kind,
        proposals=tuple(p for h in group for p in h.proposals),
        sources=sources,
        declined=tuple(d for h in group for d in h.declined),
        verdicts=tuple(verdicts),
        queries=tuple(queries),
        state=", ".join(_unique(h.state for h in group if h.state)),
    )


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
