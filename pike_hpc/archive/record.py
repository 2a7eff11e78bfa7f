"""What an archive tells: a run, its tasks, and what became of every proposal and query.

Frozen records, derived from the journal's events alone. Know nothing of files.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pike_hpc.journal import Stamped
from pike_hpc.records import Brainstormed, Declined, EvalResult, Proposal, Task, Usage


class TaskState(enum.StrEnum):
    """Where a task's search stands."""

    RUNNING = "running"
    """A controller took it and has neither paused nor finished it; it may have been killed."""
    PAUSED = "paused"
    FINISHED = "finished"


class QueryOutcome(enum.StrEnum):
    """What became of a model query."""

    ANSWERED = "answered"
    FAILED = "failed"
    LOST = "lost"
    """Its controller died while it was in flight."""
    OPEN = "open"
    """Reserved, and nothing is known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedProposal:
    """A proposal, the decision it came from, and when."""

    time: float
    """Unix time, as in every record here."""
    node: str
    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedDecline:
    """A decision that gave no candidate."""

    time: float
    declined: Declined


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedIdeas:
    """Ideas parsed from an answer."""

    time: float
    ideas: Brainstormed


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedResult:
    """A verdict and when it became final."""

    time: float
    result: EvalResult


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRecord:
    """One model query, from reservation to outcome."""

    query_id: str
    node: str
    role: str
    model: str
    prompt_digest: str
    time: float
    """When it was reserved."""
    outcome: QueryOutcome
    usage: Usage | None = None
    """Where answered."""
    max_cost_usd: float = 0.0
    """What was reserved for it."""
    charged: bool = True
    """False where it failed and the provider takes no money for that."""
    latency_s: float = 0.0
    finish_reason: str = ""
    text: str = ""
    """The answer. Hostile text."""
    failure: str = ""
    """Kind and message of a failure."""

    @property
    def cost_usd(self) -> float:
        """What the ledger counts: the price of an answer, else, if charged, the reservation."""
        if self.usage is not None:
            return self.usage.cost_usd
        return self.max_cost_usd if self.charged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task's search, in the order of its events."""

    slug: str
    task: Task
    device_kind: str
    state: TaskState
    proposals: tuple[StampedProposal, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Candidate id to its source. Hostile text."""
    declined: tuple[StampedDecline, ...] = ()
    ideas: tuple[StampedIdeas, ...] = ()
    results: tuple[StampedResult, ...] = ()
    """The search's verdicts."""
    retimes: tuple[StampedResult, ...] = ()
    """Verdicts on candidates that were judged again."""
    queries: tuple[QueryRecord, ...] = ()
    events: tuple[Stamped, ...] = ()
    """Everything, exactly as in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArchive:
    """A run as far as its archive tells."""

    run_id: str
    """The run folder's name when the archive was built."""
    created: str
    """Time of the first event, ISO 8601 in UTC; empty where there is none."""
    software_version: str
    complete: bool
    """True when every task that was begun is finished."""
    config_text: str = ""
    """The text of run.yaml."""
    tasks: tuple[TaskRecord, ...] = ()
