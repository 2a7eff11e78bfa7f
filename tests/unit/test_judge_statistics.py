"""When measuring stops, and what the null constant may take off."""

import math
import random

import pytest

from pike_hpc.evaluate.statistics import (
    Block,
    Estimate,
    StopRule,
    candidate_first,
    clock_step,
    decide,
    estimate,
    windows_per_half,
    without_null,
)

RULE = StopRule(half_width=0.02, budget_s=2.0)


def found(speedup: float, low: float, high: float) -> Estimate:
    return Estimate(
        speedup=speedup,
        ci95=(low, high),
        candidate_ms=1.0,
        reference_ms=speedup,
        windows=5,
        half_width=(high - low) / (2 * speedup),
    )


def test_the_estimate_is_the_ratio_of_medians_without_the_constant():
    block = Block(reference_ms=(4.5, 4.5001, 99.0), candidate_ms=(0.6, 2.5, 2.5001))
    result = estimate([block] * 5, 0.5)  # the step that repeating shows is 0.0001
    assert result.speedup == pytest.approx(2.0, rel=1e-3)
    assert result.half_width == pytest.approx(0.0, abs=1e-3)
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


def test_halves_are_short():
    assert windows_per_half(0.01) == 40
    assert windows_per_half(5.0) == 5
    assert windows_per_half(3000.0) == 1


def test_either_side_is_first_as_often():
    firsts = [candidate_first(block) for block in range(8)]
    assert firsts == [False, True, True, False] * 2


def test_a_coarse_clock_widens_the_interval():
    """Five blocks that agree to the last digit, on a clock that shows only steps of 0.1 ms."""
    blocks = [Block(reference_ms=(5.0, 5.1, 5.0), candidate_ms=(2.5, 2.5, 2.4))] * 5
    assert clock_step(blocks) == pytest.approx(0.1)
    low, high = estimate(blocks, 0.0).ci95
    assert low <= 4.98 / 2.53
    assert high >= 5.02 / 2.47


def test_a_process_that_is_sure_of_itself_may_differ_from_the_next_one():
    """Two thousand processes, half a percent apart, each measured with hardly any noise."""
    rng = random.Random(1)
    held = 0
    for _ in range(2000):
        reference_ms = 2.0 * math.exp(rng.gauss(0, 0.005))
        steps = [1 + 1e-6 * i for i in range(5)]
        blocks = [Block(reference_ms=(reference_ms * x,), candidate_ms=(x * x,)) for x in steps]
        result = estimate(blocks, 0.0)
        assert decide(result, 5, 0.1, RULE).stop  # more blocks would not narrow it
        held += result.ci95[0] <= 2.0 <= result.ci95[1]
    assert 0.93 <= held / 2000 <= 0.97


def test_readings_that_do_not_repeat_show_no_step():
    assert clock_step([Block(reference_ms=(2.0, 2.0), candidate_ms=(2.0,))]) == 0.0
    assert clock_step([Block(reference_ms=(2.0, 2.1), candidate_ms=(1.0,))]) == 0.0
