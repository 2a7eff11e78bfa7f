"""The events of a task's journal. A search is nothing but their replay.

`node` names a decision of the strategy ("rule/fold_batch_norm", "p0/b3/r1"). A decision whose
node already has an outcome in the journal is never taken again: that is what makes resuming
the same as going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pike_hpc.records.nouns import EvalResult, Proposal, Task, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted:
    """A controller took the task over; events of older epochs beyond `inherited` don't count."""

    epoch: int
    writer: str
    inherited: Mapping[str, int] = field(default_factory=dict)
    """Older segment name to the number of its events that count."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOpened:
    """The task itself, once per journal."""

    task: Task
    device_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReserved:
    """A model query is about to be sent; from here on it may have been paid."""

    query_id: str
    node: str
    role: str
    model: str
    prompt_digest: str
    max_cost_usd: float = 0.0
    parent_ids: tuple[str, ...] = ()
    """What the answer's program will descend from; kept here so that a paid answer is enough."""
    branch: int | None = None
    phase: int | None = None
    round: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswered:
    """The answer, before anything is made of it."""

    query_id: str
    text: str
    finish_reason: str
    usage: Usage
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed:
    """The provider gave no answer; `charged` says whether it counts against the budget."""

    query_id: str
    kind: str
    message: str
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLost:
    """The controller died while the query was in flight: its cost is unknown and counted."""

    query_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Brainstormed:
    """Ideas parsed from an answer."""

    node: str
    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A candidate was made. The source is kept once per candidate, with its first proposal."""

    node: str
    proposal: Proposal
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The decision gave no candidate: a rule's precondition, or an answer without a program."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The candidate was put into the mailbox."""

    request_id: str
    candidate_id: str
    retime: int = 0
    """As in the request: 0 for the search, n for the n-th timing again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A verdict. Final once this event is on disk."""

    result: EvalResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The controller stopped before the end; the same command continues."""

    reason: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """Nothing new is tried any more; what leads is timed again before the task is finished."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The task is over: searched, and its best timed again as far as that was possible."""

    reason: str


Event = (
    ControllerStarted
    | TaskOpened
    | QueryReserved
    | QueryAnswered
    | QueryFailed
    | QueryLost
    | Brainstormed
    | Proposed
    | Declined
    | Requested
    | Evaluated
    | Paused
    | SearchEnded
    | Finished
)

EVENT_TYPES: Mapping[str, type] = {
    t.__name__: t
    for t in (
        ControllerStarted,
        TaskOpened,
        QueryReserved,
        QueryAnswered,
        QueryFailed,
        QueryLost,
        Brainstormed,
        Proposed,
        Declined,
        Requested,
        Evaluated,
        Paused,
        SearchEnded,
        Finished,
    )
}
