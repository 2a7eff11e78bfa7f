"""Whatever arrives in which order, and whatever is lost: limits hold, searches end and agree."""

import hashlib
import random

from builders.queries import answered, reserved
from builders.results import passed, timed
from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.records import (
    Brainstormed,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Proposal,
    Proposed,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Requested,
    ResultKey,
    Role,
    Task,
    TaskOpened,
    Tier,
)
from pike_hpc.search import (
    Finish,
    Limits,
    NodeState,
    ProposeByRule,
    make_strategy,
    may_evaluate,
    replay,
    why_no_query,
)

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")
CEILING_USD = 0.4
RULES = (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"))


def fate(node, world):
    """A number that decides what becomes of a node: the same in every schedule of a world."""
    return int(hashlib.sha256(f"{world}:{node}".encode()).hexdigest(), 16) % 1000


def verdict(candidate_id, world):
    luck = fate(candidate_id, world)
    key = ResultKey(
        task_digest=TASK.digest, candidate_id=candidate_id, device_kind="cpu", image_digest="i"
    )
    if luck % 10 < 6:
        return EvalResult(key=key, status=EvalStatus.WRONG_RESULT)
    if luck % 10 < 7:
        return EvalResult(key=key, status=EvalStatus.JUDGE_ERROR)
    speedup = 0.5 + luck / 400
    return passed(key, speedup, tier=list(Tier)[luck % 3], timing=timed(speedup, ci95=(1.0, 1.0)))


class Agent:
    """Does one thing at a time, chosen at random among all that could happen next."""

    def __init__(self, strategy, limits, world, schedule, events=()):
        self.strategy, self.limits, self.world = strategy, limits, world
        self.random = random.Random(schedule)
        self.events = list(events) or [TaskOpened(task=TASK, device_kind="cpu")]
        self.view = replay(self.events)
        self.started = sum(isinstance(e, QueryReserved) for e in self.events)

    def note(self, event):
        self.events.append(event)
        self.view.apply(event)
        self.check()

    def check(self):
        spent, limits = self.view.spent, self.limits
        assert not limits.queries or spent.queries <= limits.queries
        assert not limits.evaluations or spent.evaluations <= limits.evaluations
        assert not limits.max_usd or spent.usd + spent.reserved_usd <= limits.max_usd + 1e-9

    def take_over(self):
        """What a new controller does first."""
        for query_id in self.view.in_flight:
            self.note(QueryLost(query_id=query_id))

    def start(self, action):
        assert self.view.state(action.node) is NodeState.UNDECIDED
        if isinstance(action, ProposeByRule):
            if fate(action.node, self.world) % 4 == 0:
                self.note(Declined(node=action.node, operator="rule", reason="no"))
            else:
                self.propose(action.node)
        elif why_no_query(self.view, self.limits, CEILING_USD) is None:
            self.started += 1
            self.note(reserved(f"q{self.started}", action.node, action.role, usd=CEILING_USD))

    def propose(self, node):
        # Some programs turn out equal.
        candidate_id = f"c{fate(node, self.world) % 150}"
        proposal = Proposal(candidate_id=candidate_id, operator="o")
        self.note(Proposed(node=node, proposal=proposal, source="#"))

    def settle(self, query_id, drop):
        query = self.view.queries[query_id]
        luck = fate(query.node, self.world)
        if drop and self.random.random() < 0.2:
            unpaid = QueryFailed(query_id=query_id, kind="unavailable", message="")
            self.note(self.random.choice((QueryLost(query_id=query_id), unpaid)))
            return
        self.note(answered(query_id, usd=CEILING_USD * (luck % 7) / 6))

    def parse(self, query):
        node = query.reserved.node
        if query.reserved.role == Role.BRAINSTORM:
            self.note(Brainstormed(node=node, ideas=("x", "y")[: fate(node, self.world) % 3]))
        elif fate(node, self.world) % 5 == 0:
            self.note(Declined(node=node, operator="o", reason="no program"))
        else:
            self.propose(node)

    def possible(self, drop):
        view = self.view
        steps = [lambda q=q: self.settle(q, drop) for q in view.in_flight]
        steps += [lambda q=q: self.parse(q) for q in view.unparsed]
        if may_evaluate(view, self.limits):
            steps += [lambda c=c: self.request(c) for c in view.unrequested[:1]]
        for candidate_id in view.unjudged.values():
            result = verdict(candidate_id, self.world)
            steps.append(lambda r=result: self.note(Evaluated(result=r)))
        return steps

    def request(self, candidate_id):
        request_id = verdict(candidate_id, self.world).request_id
        self.note(Requested(request_id=request_id, candidate_id=candidate_id))

    def run(self, *, drop=False, stop_after=None):
        """Every node asked for, in order; stops early after `stop_after` events."""
        for _ in range(5000):
            if stop_after is not None and len(self.events) >= stop_after:
                return None
            known = len(self.events)
            for action in self.strategy.decide(self.view):
                if isinstance(action, Finish):
                    assert not self.view.in_flight
                    assert not self.view.unparsed
                    assert action.reason.endswith(".")
                    return frozenset(self.view.outcomes)
                self.start(action)
            steps = self.possible(drop)
            if not steps and len(self.events) > known:
                continue
            if not steps:
                # Only money may stop what the strategy still wants.
                assert why_no_query(self.view, self.limits, CEILING_USD)
                return frozenset(self.view.outcomes)
            self.random.choice(steps)()
        raise AssertionError("the search did not end")


@st.composite
def searches(draw, usd=False):
    name = draw(st.sampled_from(["pike_b", "default", "rules"]))
    limits = Limits(
        queries=draw(st.integers(1, 30)),
        evaluations=draw(st.one_of(st.just(0), st.integers(1, 25))),
        max_usd=draw(st.sampled_from([0.0, 1.0, 3.5])) if usd else 0.0,
    )
    options = {
        "branches": draw(st.integers(1, 4)),
        "parents": draw(st.integers(1, 3)),
        "fix_attempts": draw(st.integers(0, 3)),
    }
    strategy = make_strategy(
        name,
        options={} if name == "rules" else options,
        seed=0,
        limits=limits,
        portfolio=RULES,
        has_model=True,
    )
    return strategy, limits, draw(st.integers(0, 10_000))


@settings(max_examples=150)
@given(searches(usd=True), st.integers())
def test_limits_hold_whatever_is_lost_and_every_search_ends(search, schedule):
    Agent(*search, schedule).run(drop=True)


@settings(max_examples=150)
@given(searches(), st.integers(), st.integers())
def test_the_order_of_arrival_does_not_change_what_is_tried(search, schedule, other):
    assert Agent(*search, schedule).run() == Agent(*search, other).run()


@settings(max_examples=100)
@given(searches(), st.integers(), st.integers(2, 120))
def test_a_search_killed_anywhere_without_a_query_in_flight_goes_on_the_same(search, seed, cut):
    whole = Agent(*search, seed).run()
    first = Agent(*search, seed)
    if first.run(stop_after=cut) is not None:
        return
    while first.view.in_flight:
        first.settle(first.view.in_flight[0], drop=False)
    second = Agent(*search, seed + 1, events=first.events)
    second.take_over()
    assert second.run() == whole


@settings(max_examples=100)
@given(searches(), st.integers())
def test_without_an_evaluation_limit_the_query_budget_is_used_exactly(search, schedule):
    strategy, limits, world = search
    agent = Agent(strategy, limits, world, schedule)
    agent.run()
    if limits.evaluations == 0 and agent.view.queries:
        assert agent.view.spent.queries == limits.queries


@settings(max_examples=60)
@given(searches(), st.integers(), st.integers(1, 80))
def test_one_by_one_or_at_once_the_view_is_the_same(search, schedule, cut):
    agent = Agent(*search, schedule)
    agent.run(stop_after=cut)
    assert replay(agent.events) == agent.view
