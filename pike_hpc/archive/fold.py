"""From a task's events to its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pike_hpc.archive.record import (
    QueryOutcome,
    QueryRecord,
    StampedDecline,
    StampedIdeas,
    StampedProposal,
    StampedResult,
    TaskRecord,
    TaskState,
)
from pike_hpc.journal import Stamped
from pike_hpc.records import (
    Brainstormed,
    ControllerStarted,
    Declined,
    Evaluated,
    Finished,
    Paused,
    Proposed,
    QueryAnswered,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Task,
    TaskOpened,
)


def fold(slug: str, events: Iterable[Stamped]) -> TaskRecord | None:
    """The record of a task; None while its journal has not told which task it is."""
    folding = _Folding()
    kept = tuple(events)
    for stamped in kept:
        folding.add(stamped)
    if folding.task is None:
        return None
    return TaskRecord(
        slug=slug,
        task=folding.task,
        device_kind=folding.device_kind,
        state=folding.state,
        proposals=tuple(folding.proposals),
        sources=folding.sources,
        declined=tuple(folding.declined),
        ideas=tuple(folding.ideas),
        results=tuple(folding.results),
        retimes=tuple(folding.retimes),
        queries=tuple(folding.queries.values()),
        events=kept,
    )


class _Folding:
    """The record while it grows."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.device_kind = ""
        self.state = TaskState.RUNNING
        self.proposals: list[StampedProposal] = []
        self.sources: dict[str, str] = {}
        self.declined: list[StampedDecline] = []
        self.ideas: list[StampedIdeas] = []
        self.results: list[StampedResult] = []
        self.retimes: list[StampedResult] = []
        self.queries: dict[str, QueryRecord] = {}

    def add(self, stamped: Stamped) -> None:
        time, event = stamped.time, stamped.event
        match event:
            case TaskOpened() if self.task is None:
                self.task, self.device_kind = event.task, event.device_kind
            case Proposed():
                self._propose(time, event)
            case Declined():
                self.declined.append(StampedDecline(time=time, declined=event))
            case Brainstormed():
                self.ideas.append(StampedIdeas(time=time, ideas=event))
            case Evaluated():
                verdicts = self.retimes if event.result.key.retime else self.results
                verdicts.append(StampedResult(time=time, result=event.result))
            case QueryReserved() | QueryAnswered() | QueryFailed() | QueryLost():
                self._query(time, event)
            case Paused() if self.state is TaskState.RUNNING:
                self.state = TaskState.PAUSED
            case ControllerStarted() if self.state is TaskState.PAUSED:
                self.state = TaskState.RUNNING
            case Finished():
                self.state = TaskState.FINISHED
            case _:
                pass

    def _propose(self, time: float, event: Proposed) -> None:
        self.proposals.append(StampedProposal(time=time, node=event.node, proposal=event.proposal))
        # The source is journalled once per candidate; later proposals may leave it out.
        if event.source or event.proposal.candidate_id not in self.sources:
            self.sources.setdefault(event.proposal.candidate_id, event.source)

    def _query(
        self, time: float, event: QueryReserved | QueryAnswered | QueryFailed | QueryLost
    ) -> None:
        if isinstance(event, QueryReserved):
            self.queries[event.query_id] = QueryRecord(
                query_id=event.query_id,
                node=event.node,
                role=event.role,
                model=event.model,
                prompt_digest=event.prompt_digest,
                time=time,
                outcome=QueryOutcome.OPEN,
                max_cost_usd=event.max_cost_usd,
            )
            return
        query = self.queries.get(event.query_id)
        if query is None:
            # An outcome without a reservation breaks the controller's first rule; it stays
            # visible in `events`, and has no row of its own.
            return
        match event:
            case QueryAnswered():
                query = replace(
                    query,
                    outcome=QueryOutcome.ANSWERED,
                    usage=event.usage,
                    latency_s=event.latency_s,
                    finish_reason=event.finish_reason,
                    text=event.text,
                )
            case QueryFailed():
                query = replace(
                    query,
                    outcome=QueryOutcome.FAILED,
                    charged=event.charged,
                    failure=f"{event.kind}: {event.message}",
                )
            case QueryLost():
                query = replace(query, outcome=QueryOutcome.LOST)
        self.queries[event.query_id] = query
