"""Limits: 0 is none, what is in flight counts, and the refusal is a sentence that names its key."""

import pytest
from builders.results import key_of

from pike_hpc.records import (
    Environment,
    EvalResult,
    EvalStatus,
    Evaluated,
    QueryReserved,
    Requested,
    Task,
    TaskOpened,
    UsageError,
)
from pike_hpc.search import (
    Limits,
    may_evaluate,
    replay,
    why_no_evaluation,
    why_no_query,
    why_unjudgeable,
)

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")


def queries(count, usd=0.0):
    return [
        QueryReserved(
            query_id=f"q{i}", node="n", role="fix", model="m", prompt_digest="", max_cost_usd=usd
        )
        for i in range(count)
    ]


def requests(count):
    return [Requested(request_id=f"r{i}", candidate_id=f"c{i}") for i in range(count)]


def test_zero_is_no_limit():
    view = replay(queries(1000, usd=10.0) + requests(1000))
    assert why_no_query(view, Limits(), 1e9) is None
    assert may_evaluate(view, Limits())


def test_queries_in_flight_count():
    limits = Limits(queries=2)
    assert why_no_query(replay(queries(1)), limits) is None
    assert why_no_query(replay(queries(2)), limits) == (
        "All 2 model queries are used (budget.queries_per_task)."
    )


def test_dollars_are_checked_with_what_the_next_query_may_cost():
    view, limits = replay(queries(2, usd=0.4)), Limits(max_usd=1.0)
    assert why_no_query(view, limits, 0.2) is None
    assert why_no_query(view, limits, 0.3) == (
        "$0.80 of $1.00 are spent or reserved and the next query may cost $0.30 (budget.max_usd)."
    )
    assert why_no_query(replay(queries(2, usd=0.5)), limits, 0.0)


def test_evaluations_in_flight_count():
    limits = Limits(evaluations=2)
    assert may_evaluate(replay(requests(1)), limits)
    assert "All 2 evaluations" in why_no_evaluation(replay(requests(2)), limits)


def unjudged(number, host):
    where = Environment(device="H200", host=host)
    result = EvalResult(
        key=key_of(TASK.digest, f"c{number}"),
        status=EvalStatus.JUDGE_ERROR,
        message="no room",
        environment=where,
    )
    return Evaluated(result=result)


@pytest.mark.parametrize(("hosts", "enough"), [("ab", 8), ("a", 12), ("aaaaaaaaab", 10)])
def test_one_host_alone_is_asked_for_longer_why_nothing_can_be_judged(hosts, enough):
    """Its disk or its GPU may be what is wrong."""
    view = replay([TaskOpened(task=TASK, device_kind="cpu")])
    said = []
    for number in range(enough):
        said.append(why_unjudgeable(view))
        view.apply(unjudged(number, hosts[number % len(hosts)]))
    assert said == [None] * enough
    assert why_unjudgeable(view).startswith(f"Of {enough} programs none could be judged")


@pytest.mark.parametrize("name", ["queries", "evaluations", "max_usd", "max_gpu_s"])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_negative_budget_is_refused(name, value):
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})
