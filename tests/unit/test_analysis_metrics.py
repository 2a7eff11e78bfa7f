"""The figures of one task: what counts as best, as stock, as spent, and in which order."""

from dataclasses import replace

import pytest
from builders.results import correct, timed

from pike_hpc.analysis.history import RunHistory, TaskHistory, merge
from pike_hpc.analysis.metrics import (
    baselines,
    best_per_tier,
    cost,
    over_stock,
    selection,
    standing,
    status_counts,
    stock_speedup,
    trajectory,
)
from pike_hpc.archive import QueryOutcome, QueryRecord, StampedResult
from pike_hpc.proposers.rules import is_stock_operator as is_stock
from pike_hpc.records import (
    Candidate,
    EvalResult,
    EvalStatus,
    Proposal,
    ResultKey,
    Task,
    Tier,
    Usage,
)

TASK = Task(suite="s", id="4", name="4_LeNet5", source="class Model: ...")


def candidate(name):
    return Candidate(task_digest=TASK.digest, source=name)


def passed(name, speedup, tier="fp32", **more):
    return verdict(name, EvalStatus.PASSED, speedup=speedup, tier=tier, **more)


def verdict(name, status, *, speedup=None, tier=None, time=0.0, device="cpu", stock_ms=None):
    timing = correctness = None
    if speedup is not None:
        timing = timed(
            speedup,
            candidate_ms=10.0 / speedup,
            reference_ms=10.0,
            ci95=(speedup * 0.9, speedup * 1.1),
            stock_best_ms=stock_ms,
        )
        correctness = correct()
    key = ResultKey(
        task_digest=TASK.digest,
        candidate_id=candidate(name).id,
        device_kind=device,
        image_digest="",
    )
    result = EvalResult(
        key=key,
        status=status,
        tier=Tier(tier) if tier else None,
        timing=timing,
        correctness=correctness,
        lane_s=2.0,
    )
    return StampedResult(time=time, result=result)


def again(stamped, number=1):
    """The same verdict as that of the n-th time that the candidate was judged again."""
    key = replace(stamped.result.key, retime=number)
    return StampedResult(time=100.0 + number, result=replace(stamped.result, key=key))


def history(*verdicts, operators=None, queries=(), device="cpu", retimes=()):
    return TaskHistory(
        run_ids=("r",),
        task=TASK,
        device_kind=device,
        proposals=tuple(
            Proposal(candidate_id=candidate(name).id, operator=operator)
            for name, operator in (operators or {}).items()
        ),
        sources={},
        verdicts=verdicts,
        retimes=retimes,
        queries=queries,
    )


def test_a_stricter_candidate_counts_in_looser_columns_but_not_the_other_way():
    best = best_per_tier(history(passed("a", 2.0, "fp32"), passed("b", 3.0, "tf32")))
    assert best[Tier.FP32].speedup == 2.0
    assert best[Tier.TF32].speedup == best[Tier.HALF].speedup == 3.0
    assert best[Tier.HALF].tier is Tier.TF32


def test_a_strict_winner_is_also_the_best_of_looser_tiers():
    best = best_per_tier(history(passed("a", 4.0, "fp32"), passed("b", 3.0, "half")))
    assert best[Tier.HALF].candidate == candidate("a").id


def test_a_tier_without_a_correct_candidate_has_no_best():
    best = best_per_tier(history(passed("a", 3.0, "half"), verdict("b", EvalStatus.WRONG_RESULT)))
    assert best[Tier.FP32] is None
    assert best[Tier.TF32] is None
    assert best[Tier.HALF] is not None


def test_of_equals_the_first_judged_wins():
    best = best_per_tier(history(passed("a", 2.0), passed("b", 2.0)))
    assert best[Tier.FP32].candidate == candidate("a").id


def test_the_latest_verdict_of_a_candidate_stands():
    twice = history(passed("a", 5.0, time=1.0), passed("a", 2.0, time=2.0))
    assert best_per_tier(twice)[Tier.FP32].speedup == 2.0


def test_what_was_timed_again_counts_and_the_search_value_stands_beside_it():
    best = best_per_tier(
        history(
            passed("a", 5.0),
            passed("b", 4.0),
            passed("c", 3.0),
            retimes=(again(passed("b", 2.0)), again(passed("c", 1.5))),
        )
    )[Tier.FP32]
    assert (best.candidate, best.speedup) == (candidate("b").id, 2.0)
    assert (best.retimed, best.search_speedup) == (True, 4.0)


def test_the_latest_time_again_counts_unless_it_decided_nothing():
    times = (
        again(passed("a", 2.0), 1),
        again(passed("a", 1.8), 2),
        again(verdict("a", EvalStatus.JUDGE_ERROR), 3),
    )
    assert best_per_tier(history(passed("a", 5.0), retimes=times))[Tier.FP32].speedup == 1.8


def test_merged_runs_go_by_time_and_each_in_its_own_order():
    """The first run went on at a host whose clock was behind."""
    first = [passed("a", 2.9, time=1200.0), passed("a", 2.0, time=900.0)]
    between = [passed("a", 2.5, time=1100.0)]
    runs = [
        RunHistory(run_id=name, path=name, created="", tasks=(history(retimes=tuple(retimes)),))
        for name, retimes in (("1", first), ("2", between))
    ]
    for order in (runs, runs[::-1]):
        (merged,) = merge(order)
        assert [v.result.timing.speedup for v in merged.retimes] == [2.5, 2.9, 2.0]


def test_who_fails_when_judged_again_has_lost_the_place():
    judged = history(
        passed("a", 5.0),
        passed("b", 2.0),
        retimes=(again(verdict("a", EvalStatus.WRONG_RESULT)), again(passed("b", 2.0))),
    )
    assert best_per_tier(judged)[Tier.FP32].candidate == candidate("b").id
    assert selection(judged).lost == 1
    alone = history(passed("a", 5.0), retimes=(again(verdict("a", EvalStatus.TIMEOUT)),))
    assert best_per_tier(alone)[Tier.HALF] is None


def test_the_selection_bias_is_of_the_search_winners_and_counts_a_program_once():
    judged = history(
        passed("a", 3.0),
        passed("b", 2.9),
        passed("h", 6.0, "half"),
        retimes=(
            again(passed("a", 2.5)),
            again(passed("b", 2.9)),
            again(passed("h", 5.0, "half")),
        ),
    )
    assert selection(judged).ratios == pytest.approx((1.2, 1.2))


def test_stock_settings_count_with_what_was_timed_again_too():
    judged = history(
        passed("a", 3.0),
        passed("s", 2.0),
        operators={"a": "optimise", "s": "rule:compile_default"},
        retimes=(again(passed("a", 3.0)), again(passed("s", 1.5))),
    )
    assert over_stock(judged, Tier.FP32) == 2.0


def test_a_stock_setting_that_was_not_timed_again_is_no_measure_where_another_was():
    judged = history(
        passed("w", 3.2),
        passed("s", 2.0),
        passed("t", 1.9),
        operators={"w": "optimise", "s": "rule:compile_default", "t": "rule:channels_last"},
        retimes=(again(passed("w", 3.0)), again(passed("s", 1.7))),
    )
    assert over_stock(judged, Tier.FP32) == pytest.approx(3.0 / 1.7)


def test_nor_is_a_stock_latency_beside_the_search_value():
    judged = history(
        passed("w", 3.2, stock_ms=2.0),
        operators={"w": "optimise"},
        retimes=(again(passed("w", 3.0, stock_ms=5.0)),),
    )
    assert stock_speedup(judged, Tier.FP32) == pytest.approx(2.0)


@pytest.mark.parametrize("status", [EvalStatus.JUDGE_ERROR, EvalStatus.WORKER_LOST])
def test_a_verdict_that_decided_nothing_does_not_displace_one_that_did(status):
    twice = history(passed("a", 2.0, time=1.0), verdict("a", status, time=2.0))
    assert standing(twice)[candidate("a").id].result.status is EvalStatus.PASSED
    other_way = history(verdict("a", status, time=1.0), passed("a", 2.0, time=2.0))
    assert standing(other_way)[candidate("a").id].result.status is EvalStatus.PASSED


@pytest.mark.parametrize(
    ("operator", "stock"),
    [
        ("rule:identity", True),
        ("rule:compile_default", True),
        ("rule:compile_max_autotune", True),
        ("rule:half_body", True),
        ("rule:compile_default+fold_batch_norm", False),
        ("rule:compiler_tricks", False),
        ("rule:fold_batch_norm", False),
        ("brainstorm", False),
        ("compile_default", False),
    ],
)
def test_only_settings_that_torch_ships_used_alone_are_stock(operator, stock):
    assert is_stock(operator) is stock


def test_over_stock_divides_by_the_best_stock_setting_of_the_same_tier():
    operators = {"c": "rule:compile_default", "h": "rule:half_body", "m": "optimise"}
    judged = history(
        passed("c", 1.5), passed("h", 4.0, "half"), passed("m", 3.0), operators=operators
    )
    assert over_stock(judged, Tier.FP32) == pytest.approx(2.0)
    assert over_stock(judged, Tier.HALF) == pytest.approx(1.0)
    assert set(baselines(judged)) == {"compile_default", "half_body"}


def test_eager_is_a_stock_setting_so_a_slow_compile_is_no_easy_mark():
    slow = history(
        passed("c", 0.5), passed("m", 1.2), operators={"c": "rule:compile_default", "m": "fix"}
    )
    assert stock_speedup(slow, Tier.FP32) == 1.0
    assert over_stock(slow, Tier.FP32) == pytest.approx(1.2)


def test_a_failed_stock_setting_was_tried_and_an_untried_one_was_not_beaten():
    operators = {"c": "rule:compile_default", "m": "fix", "i": "rule:identity"}
    failed = history(verdict("c", EvalStatus.BUILD_ERROR), passed("m", 1.2), operators=operators)
    assert over_stock(failed, Tier.FP32) == pytest.approx(1.2)
    only_eager = history(passed("i", 1.0), passed("m", 1.2), operators=operators)
    assert over_stock(only_eager, Tier.FP32) is None


def test_a_stock_latency_measured_beside_the_candidate_counts():
    measured = history(passed("m", 4.0, stock_ms=5.0), operators={"m": "fix"})
    assert stock_speedup(measured, Tier.FP32) == pytest.approx(2.0)


def test_a_program_also_proposed_by_a_stock_rule_is_called_stock():
    judged = history(passed("c", 1.5), operators={"c": "optimise"})
    both = TaskHistory(
        run_ids=("r",),
        task=TASK,
        device_kind="cpu",
        proposals=(
            *judged.proposals,
            Proposal(candidate_id=candidate("c").id, operator="rule:compile_default"),
        ),
        verdicts=judged.verdicts,
    )
    assert best_per_tier(both)[Tier.FP32].operator == "rule:compile_default"


def test_the_trajectory_is_chronological_and_counts_failures():
    steps = trajectory(
        history(
            passed("a", 2.0, time=10.0),
            verdict("b", EvalStatus.TIMEOUT, time=20.0),
            passed("c", 1.5, time=30.0),
            passed("d", 3.0, "half", time=40.0),
            passed("e", 2.5, time=50.0),
        ),
        Tier.FP32,
    )
    assert [(s.evaluation, s.elapsed_s, s.speedup) for s in steps] == [
        (1, 0.0, 2.0),
        (5, 40.0, 2.5),
    ]


def test_every_verdict_is_counted_once():
    counts = status_counts(
        history(passed("a", 2.0), passed("b", 1.0), verdict("c", EvalStatus.TIMEOUT))
    )
    assert counts == {EvalStatus.PASSED: 2, EvalStatus.TIMEOUT: 1}


def query(name, outcome, usage=None, charged=True):
    return QueryRecord(
        query_id=name,
        node="n",
        role="optimise",
        model="m",
        prompt_digest="",
        time=0.0,
        outcome=outcome,
        usage=usage,
        max_cost_usd=0.5,
        charged=charged,
    )


def test_cost_separates_what_was_paid_from_what_may_have_been():
    priced = Usage(model="m", input_tokens=100, cached_tokens=40, output_tokens=7, cost_usd=0.2)
    spent = cost(
        history(
            passed("a", 2.0),
            passed("b", 2.0),
            device="nvidia-h200",
            queries=(
                query("1", QueryOutcome.ANSWERED, priced),
                query("2", QueryOutcome.ANSWERED, Usage(model="own", priced=False)),
                query("3", QueryOutcome.LOST),
                query("4", QueryOutcome.OPEN),
                query("5", QueryOutcome.FAILED, charged=False),
                query("6", QueryOutcome.FAILED, charged=True),
            ),
        )
    )
    assert (spent.queries, spent.queries_failed, spent.queries_lost) == (5, 2, 1)
    assert spent.cost_usd == pytest.approx(0.2)
    assert spent.at_risk_usd == pytest.approx(1.5)
    assert spent.queries_unpriced == 1
    assert (spent.input_tokens, spent.cached_tokens, spent.output_tokens) == (100, 40, 7)
    assert (spent.evaluations, spent.lane_s, spent.gpu_s) == (2, 4.0, 4.0)


def test_a_cpu_lane_is_no_gpu_time():
    assert cost(history(passed("a", 2.0))).gpu_s == 0.0


@pytest.mark.parametrize(
    ("operator", "stock"),
    [
        ("rule:identity", True),
        ("rule:compile_default", True),
        ("rule:channels_last+half_body+compile_reduce_overhead", True),
        ("rule:fold_batch_norm+compile_default", False),
        ("rule:sdpa", False),
        ("rule:compile_from_the_future", False),
        ("optimise", False),
    ],
)
def test_settings_that_torch_ships_are_stock_also_together(operator, stock):
    assert is_stock(operator) is stock
