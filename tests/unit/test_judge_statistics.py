"""When measuring stops, and what the null constant may take off."""

import pytest

from pike_hpc.evaluate.statistics import (
    PATIENCE,
    Block,
    Estimate,
    StopRule,
    candidate_first,
    clock_step,
    decide,
    estimate,
    steady,
    windows_per_half,
    without_null,
)

RULE = StopRule(half_width=0.02, budget_s=2.0)


def found(speedup: float, low: float, high: float) -> Estimate:
    return Estimate(
        speedup=speedup, ci95=(low, high), candidate_ms=1.0, reference_ms=speedup, windows=5
    )


def test_the_estimate_is_the_ratio_of_medians_without_the_constant():
    block = Block(reference_ms=(4.5, 4.5001, 99.0), candidate_ms=(0.6, 2.5, 2.5001))
    result = estimate([block] * 5, 0.5)  # the step that repeating shows is 0.0001
    assert result.speedup == pytest.approx(2.0, rel=1e-3)
    assert result.ci95 == pytest.approx((2.0, 2.0), rel=1e-3)
    assert (result.reference_ms, result.candidate_ms) == (4.0001, 2.0)
    assert result.windows == 15


def test_the_constant_never_takes_everything():
    assert without_null(1.0, 0.25) == 0.75
    assert without_null(1.0, 5.0) == pytest.approx(0.5)


def test_no_blocks_is_an_error():
    with pytest.raises(ValueError, match="no blocks"):
        estimate([], 0.0)


@pytest.mark.parametrize(
    ("estimate_", "blocks", "spent_s", "stop", "early"),
    [
        (found(1.0, 0.99, 1.01), 4, 9.0, False, False),
        (found(1.0, 0.99, 1.01), 5, 0.1, True, False),
        (found(1.0, 0.9, 1.1), 5, 0.1, False, False),
        (found(1.0, 0.91, 1.09), 5, 2.0, True, False),
        (found(1.0, 0.8, 1.2), 5, 5.9, False, False),
        (found(1.0, 0.8, 1.2), 5, 6.0, True, False),
        (found(0.5, 0.4, 0.6), 3, 0.9, False, False),
        (found(0.5, 0.4, 0.6), 4, 0.9, True, True),
        (found(0.5, 0.4, 0.6), 4, 0.1, False, False),
        (found(0.6, 0.5, 0.7), 4, 0.9, False, False),
        (found(0.9, 0.85, 0.95), 4, 0.9, False, False),
    ],
)
def test_measuring_stops_when_enough_is_known(estimate_, blocks, spent_s, stop, early):
    decision = decide(estimate_, blocks, spent_s, RULE)
    assert (decision.stop, decision.early) == (stop, early)


def test_a_machine_that_is_never_steady_is_not_waited_for_forever():
    wide = found(1.0, 0.9, 1.1)
    late_s = PATIENCE * RULE.budget_s
    assert not decide(wide, 2, late_s - 0.1, RULE, unsteady=30).stop
    assert decide(wide, 2, late_s, RULE, unsteady=30).stop
    assert not decide(wide, 2, late_s, RULE, unsteady=2).stop


def test_halves_are_short():
    assert windows_per_half(0.01) == 40
    assert windows_per_half(1.0) == 13
    assert windows_per_half(5.0) == 3
    assert windows_per_half(20.0) == 2
    assert windows_per_half(3000.0) == 1


def test_either_side_is_first_as_often():
    firsts = [candidate_first(block) for block in range(8)]
    assert firsts == [False, True, True, False] * 2


def slowed(*nulls_ms):
    return [
        Block(reference_ms=(float(i),), candidate_ms=(1.0,), slowest_null_ms=null_ms)
        for i, null_ms in enumerate(nulls_ms)
    ]


def kept(nulls_ms, least):
    return [int(b.reference_ms[0]) for b in steady(slowed(*nulls_ms), least)]


def test_blocks_on_a_slowed_machine_do_not_count():
    assert kept((0.065, 0.12, 0.07, 0.084, 0.085, 0.064), 2) == [0, 2, 5]


def test_where_few_are_left_the_fastest_count():
    assert kept((0.1, 0.3, 0.2, 0.4), 3) == [0, 1, 2]
    assert kept((0.1, 0.3), 5) == [0, 1]


def test_where_speed_is_not_looked_at_all_count():
    assert kept((0.0, 0.0, 0.0), 1) == [0, 1, 2]


def test_a_coarse_clock_widens_the_interval():
    """Five blocks that agree to the last digit, on a clock that shows only steps of 0.1 ms."""
    blocks = [Block(reference_ms=(5.0, 5.1, 5.0), candidate_ms=(2.5, 2.5, 2.4))] * 5
    assert clock_step(blocks) == pytest.approx(0.1)
    low, high = estimate(blocks, 0.0).ci95
    assert low <= 4.98 / 2.53
    assert high >= 5.02 / 2.47


def test_readings_that_do_not_repeat_show_no_step():
    assert clock_step([Block(reference_ms=(2.0, 2.0), candidate_ms=(2.0,))]) == 0.0
    assert clock_step([Block(reference_ms=(2.0, 2.1), candidate_ms=(1.0,))]) == 0.0
