"""TaskView: what is known about one task, and nothing but the replay of its journal.

Contract: feeding the same events in the same order gives the same view, one by one or at once;
an event that repeats what is known changes nothing. Knows no clock, no file, no budget and no
strategy: those read the view. Verdicts of another task or device kind are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pike_hpc.records import (
    Brainstormed,
    ControllerStarted,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Event,
    Finished,
    Paused,
    Proposal,
    Proposed,
    QueryAnswered,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Requested,
    SearchEnded,
    Task,
    TaskOpened,
    Tier,
)
from pike_hpc.search.query import OpenQuery, Query, QueryState
from pike_hpc.search.verdict import Verdict


class Outcome(NamedTuple):
    """What a decision came to: exactly one of the three is set."""

    candidate_id: str | None = None
    declined: str | None = None
    """The reason why there is no candidate."""
    ideas: tuple[str, ...] | None = None


class NodeState(enum.StrEnum):
    """Where a decision stands."""

    UNDECIDED = "undecided"
    """Never taken, or every query for it failed or was lost: to be taken (again)."""
    ASKED = "asked"
    """A query is in flight."""
    ANSWERED = "answered"
    """The answer is journalled and nothing has been made of it yet."""
    BRAINSTORMED = "brainstormed"
    DECLINED = "declined"
    PROPOSED = "proposed"
    """A candidate exists; its verdict does not."""
    JUDGED = "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What the task has used so far."""

    queries: int = 0
    """Every query charged, those in flight and lost included."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    """Dollars of settled queries; lost ones at their ceiling, for nobody knows better."""
    reserved_usd: float = 0.0
    """Ceiling of the queries in flight."""
    evaluations: int = 0
    """Requests put into the mailbox, those in flight included, timings again aside."""
    lane_s: float = 0.0
    """Seconds that lanes (on CUDA: GPUs) were held for them."""
    retimes: int = 0
    """Requests to time a candidate again, those in flight included."""
    retime_lane_s: float = 0.0


@dataclass(slots=True)
class TaskView:
    """One task's search as its journal tells it. Only `apply` changes it."""

    task: Task | None = None
    device_kind: str | None = None
    seed: int = 0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By node, in the order of the journal."""
    proposals: dict[str, Proposal] = field(default_factory=dict)
    """By node."""
    nodes_of: dict[str, list[str]] = field(default_factory=dict)
    """The nodes that proposed a candidate, by its id."""
    sources: MutableMapping[str, str] = field(default_factory=dict)
    """By candidate id. Whoever makes the view may bring a mapping that keeps them elsewhere."""
    results: MutableMapping[str, EvalResult] = field(default_factory=dict)
    """The search's verdicts by candidate id. A JUDGE_ERROR gives way to a later verdict; nothing
    else does. May be kept elsewhere, as `sources`: to choose, `verdicts` is enough."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of `results` what choosing needs."""
    queries: dict[str, Query] = field(default_factory=dict)
    """By query id, in the order of the journal."""
    charged_queries: int = 0
    """All queries charged so far, those in flight and lost included."""
    queries_of: dict[str, list[str]] = field(default_factory=dict)
    """Query ids by node."""
    open_queries: dict[str, OpenQuery] = field(default_factory=dict)
    """By query id: those that are not settled or of whose answer nothing was made yet."""
    requested: dict[str, str] = field(default_factory=dict)
    """Request id to candidate id."""
    requested_candidates: set[str] = field(default_factory=set)
    """Those of `requested`."""
    unjudged: dict[str, str] = field(default_factory=dict)
    """Those of `requested` whose verdict is still to come."""
    lane_s: float = 0.0
    """Seconds that lanes were held, verdicts that gave way included."""
    retimes_asked: dict[str, int] = field(default_factory=dict)
    """By candidate id: how often it was requested again."""
    retiming: dict[str, str] = field(default_factory=dict)
    """Request id to candidate id, of requests to time again whose verdict is still to come."""
    retimed: dict[str, dict[int, EvalResult]] = field(default_factory=dict)
    """By candidate id: the verdict of each time that it was judged again."""
    ended: str | None = None
    """Why nothing new is tried any more; timing again may go on."""
    finished: str | None = None
    """Why the task is over."""
    paused: str | None = None
    """Why the last controller stopped early; None while one is at work."""
    remembered: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What strategies have found out that no event can change any more. Not a part of the view:
    without it they find it out again."""

    def apply(self, event: Event) -> None:
        """Take one more event of the journal into account."""
        match event:
            case ControllerStarted():
                self.seed, self.paused = event.seed, None
            case TaskOpened():
                self.task, self.device_kind = event.task, event.device_kind
            case QueryReserved():
                self._reserve(event)
            case QueryAnswered() | QueryFailed() | QueryLost():
                self._settle(event)
            case Brainstormed() | Declined() | Proposed():
                self._decide(event)
            case Requested():
                self._request(event)
            case Evaluated():
                self._judge(event.result)
            case Paused():
                self.paused = event.reason
            case SearchEnded():
                self.ended = event.reason
            case Finished():
                self.finished = event.reason

    def _reserve(self, event: QueryReserved) -> None:
        if event.query_id not in self.queries:
            self.queries[event.query_id] = query = Query(event.node, usd=event.max_cost_usd)
            self.charged_queries += query.charged
            self.queries_of.setdefault(event.node, []).append(event.query_id)
            self.open_queries[event.query_id] = OpenQuery(reserved=event)

    def _settle(self, event: QueryAnswered | QueryFailed | QueryLost) -> None:
        query = self.queries.get(event.query_id)
        if query is None or query.state is not QueryState.RESERVED:
            return
        match event:
            case QueryAnswered(usage=usage):
                settled = query._replace(
                    state=QueryState.ANSWERED,
                    usd=usage.cost_usd,
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    latency_s=event.latency_s,
                )
            case QueryFailed(charged=charged):
                usd = query.usd if charged else 0.0
                settled = query._replace(state=QueryState.FAILED, charged=charged, usd=usd)
            case QueryLost():
                settled = query._replace(state=QueryState.LOST)
        self.queries[event.query_id] = settled
        self.charged_queries += settled.charged - query.charged
        if isinstance(event, QueryAnswered) and query.node not in self.outcomes:
            asked = self.open_queries[event.query_id]  # keeps its place in the order
            self.open_queries[event.query_id] = replace(asked, answer=event)
        else:
            del self.open_queries[event.query_id]

    def _decide(self, event: Brainstormed | Declined | Proposed) -> None:
        if event.node in self.outcomes:
            return
        self._forget_answers(event.node)
        match event:
            case Brainstormed():
                self.outcomes[event.node] = Outcome(ideas=event.ideas)
            case Declined():
                self.outcomes[event.node] = Outcome(declined=event.reason)
            case Proposed():
                candidate_id = event.proposal.candidate_id
                self.outcomes[event.node] = Outcome(candidate_id=candidate_id)
                self.proposals[event.node] = event.proposal
                self.nodes_of.setdefault(candidate_id, []).append(event.node)
                if event.source:
                    self.sources.setdefault(candidate_id, event.source)

    def _forget_answers(self, node: str) -> None:
        """What was made of an answer is known: it is no longer needed."""
        for query_id in self.queries_of.get(node, ()):
            if self.queries[query_id].state is QueryState.ANSWERED:
                self.open_queries.pop(query_id, None)

    def _request(self, event: Requested) -> None:
        if event.retime:
            asked = self.retimes_asked.get(event.candidate_id, 0)
            self.retimes_asked[event.candidate_id] = max(asked, event.retime)
            if event.retime not in self.retimed.get(event.candidate_id, {}):
                self._void(self.retiming, event)
                self.retiming[event.request_id] = event.candidate_id
            return
        for request_id in self._void(self.unjudged, event):
            del self.requested[request_id]
        self.requested[event.request_id] = event.candidate_id
        self.requested_candidates.add(event.candidate_id)
        known = self.verdicts.get(event.candidate_id)
        if known is None or known.status is EvalStatus.JUDGE_ERROR:
            self.unjudged[event.request_id] = event.candidate_id

    @staticmethod
    def _void(waiting: dict[str, str], event: Requested) -> list[str]:
        """Wait no more for older requests of what is asked for anew: another judge, another id."""
        asked = (event.candidate_id, event.request_id)
        old = [r for r, c in waiting.items() if c == asked[0] and r != asked[1]]
        for request_id in old:
            del waiting[request_id]
        return old

    def _judge(self, result: EvalResult) -> None:
        if self.task is None or result.key.task_digest != self.task.digest:
            return
        if result.key.device_kind != self.device_kind:
            return
        if result.key.retime:
            self.retiming.pop(result.request_id, None)
            self.retimed.setdefault(result.candidate_id, {}).setdefault(result.key.retime, result)
            return
        self.unjudged.pop(result.request_id, None)
        candidate_id = result.candidate_id
        known = self.verdicts.get(candidate_id)
        if known is None or (
            known.status is EvalStatus.JUDGE_ERROR and self.results[candidate_id] != result
        ):
            self.results[candidate_id] = result
            self.verdicts[candidate_id] = Verdict.of(result)
            self.lane_s += result.lane_s

    def state(self, node: str) -> NodeState:
        """Where this decision stands."""
        outcome = self.outcomes.get(node)
        if outcome is None:
            states = {self.queries[i].state for i in self.queries_of.get(node, ())}
            if QueryState.ANSWERED in states:
                return NodeState.ANSWERED
            return NodeState.ASKED if QueryState.RESERVED in states else NodeState.UNDECIDED
        if outcome.ideas is not None:
            return NodeState.BRAINSTORMED
        if outcome.candidate_id is None:
            return NodeState.DECLINED
        judged = outcome.candidate_id in self.verdicts
        waiting = outcome.candidate_id in self.unjudged.values()
        return NodeState.JUDGED if judged and not waiting else NodeState.PROPOSED

    def verdict(self, node: str) -> Verdict | None:
        """What choosing needs of `result`."""
        outcome = self.outcomes.get(node)
        if outcome is None or outcome.candidate_id is None:
            return None
        return self.verdicts.get(outcome.candidate_id)

    def result(self, node: str) -> EvalResult | None:
        """The verdict on the candidate that this decision made, if there is one."""
        outcome = self.outcomes.get(node)
        if outcome is None or outcome.candidate_id is None:
            return None
        return self.results.get(outcome.candidate_id)

    def is_final(self, candidate_id: str) -> bool:
        """Whether there is a verdict that no later one replaces."""
        verdict = self.verdicts.get(candidate_id)
        return verdict is not None and verdict.status is not EvalStatus.JUDGE_ERROR

    def charged(self, node: str) -> int:
        """Queries charged for this decision: more than one where earlier ones were lost."""
        return sum(self.queries[i].charged for i in self.queries_of.get(node, ()))

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Ids of queries sent and not settled. A new controller journals each as lost."""
        return tuple(i for i, asked in self.open_queries.items() if asked.answer is None)

    @property
    def unparsed(self) -> tuple[OpenQuery, ...]:
        """Answers of which nothing was made yet: parse them, for they are paid."""
        return tuple(asked for asked in self.open_queries.values() if asked.answer is not None)

    @property
    def unrequested(self) -> tuple[str, ...]:
        """Candidates proposed, not judged and not yet in the mailbox, oldest first."""
        asked, judged = self.requested_candidates, self.verdicts
        return tuple(c for c in self.nodes_of if c not in asked and c not in judged)

    @property
    def idle(self) -> bool:
        """Nothing is under way that could change this view by itself."""
        return not (self.open_queries or self.unjudged or self.retiming)

    @property
    def spent(self) -> Spent:
        """What the task has used so far."""
        queries = self.queries.values()
        settled = [q.usd for q in queries if q.state is not QueryState.RESERVED]
        reserved = [q.usd for q in queries if q.state is QueryState.RESERVED]
        return Spent(
            queries=self.charged_queries,
            input_tokens=sum(q.input_tokens for q in queries),
            output_tokens=sum(q.output_tokens for q in queries),
            usd=sum(settled, 0.0),
            reserved_usd=sum(reserved, 0.0),
            evaluations=len(self.requested),
            lane_s=self.lane_s,
            retimes=sum(self.retimes_asked.values()),
            retime_lane_s=sum(r.lane_s for again in self.retimed.values() for r in again.values()),
        )

    def ranked(self, tier: Tier, candidates: Iterable[str] | None = None) -> tuple[str, ...]:
        """Candidates that passed at `tier` or stricter, fastest in the search first, ties by id."""
        places = (
            self.place(tier, c) for c in (self.verdicts if candidates is None else candidates)
        )
        return tuple(candidate_id for _, candidate_id in sorted(p for p in places if p is not None))

    def place(self, tier: Tier, candidate_id: str) -> tuple[float, str] | None:
        """By what `ranked` sorts; None for a candidate that is not ranked."""
        verdict = self.verdicts.get(candidate_id)
        if verdict is None or verdict.speedup is None or verdict.tier is None:
            return None
        return (-verdict.speedup, candidate_id) if verdict.tier.rank <= tier.rank else None


def replay(events: Iterable[Event], view: TaskView | None = None) -> TaskView:
    """The view after these events; `view`, if given, is what is known before them."""
    view = view if view is not None else TaskView()
    for event in events:
        view.apply(event)
    return view
