"""Limits: 0 is none, what is in flight counts, and the refusal is a sentence that names its key."""

import pytest

from pike_hpc.records import QueryReserved, Requested, UsageError
from pike_hpc.search import (
    Limits,
    may_evaluate,
    replay,
    why_no_evaluation,
    why_no_query,
)


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


@pytest.mark.parametrize("name", ["queries", "evaluations", "max_usd", "max_gpu_s"])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_negative_budget_is_refused(name, value):
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})
