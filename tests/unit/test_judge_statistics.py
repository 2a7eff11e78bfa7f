"""When measuring stops, and what the null constant may take off."""

import math
import random

import pytest

from pike_hpc.evaluate.statistics import (
    Block,
    Estimate,
    StopRule,
    decide,
    estimate,
    windows_per_half,
    without_null,
)

RULE = StopRule(half_width=0.02, budget_s=2.0)


def found(speedup: float, low: float, high: float) -> Estimate:
    return Estimate(
        speedup=speedup, ci95=(low, high), candidate_ms=1.0, reference_ms=speedup, windows=5
    )


def test_the_estimate_is_the_ratio_of_medians_without_the_constant():
    block = Block(reference_ms=(4.5, 4.5, 99.0), candidate_ms=(2.5, 2.5, 0.6))
    result = estimate([block] * 5, 0.5, random.Random(0))
    assert result.speedup == pytest.approx(2.0)
    assert result.ci95 == pytest.approx((2.0, 2.0))
    assert (result.reference_ms, result.candidate_ms) == (4.0, 2.0)
    assert result.windows == 15


def test_the_constant_never_takes_everything():
    assert without_null(1.0, 0.25) == 0.75
    assert without_null(1.0, 5.0) == pytest.approx(0.5)


def test_no_blocks_is_an_error():
    with pytest.raises(ValueError, match="no blocks"):
        estimate([], 0.0, random.Random(0))


@pytest.mark.parametrize(
    ("estimate_", "blocks", "spent_s", "stop", "early"),
    [
        (found(1.0, 0.99, 1.01), 4, 9.0, False, False),
        (found(1.0, 0.99, 1.01), 5, 0.1, True, False),
        (found(1.0, 0.9, 1.1), 5, 0.1, False, False),
        (found(1.0, 0.9, 1.1), 5, 2.0, True, False),
        (found(0.5, 0.4, 0.6), 2, 0.9, False, False),
        (found(0.5, 0.4, 0.6), 3, 0.9, True, True),
        (found(0.5, 0.4, 0.6), 3, 0.1, False, False),
        (found(0.9, 0.85, 0.95), 3, 0.1, False, False),
    ],
)
def test_measuring_stops_when_enough_is_known(estimate_, blocks, spent_s, stop, early):
    decision = decide(estimate_, blocks, spent_s, RULE)
    assert (decision.stop, decision.early) == (stop, early)


def test_halves_are_short():
    assert windows_per_half(0.01) == 40
    assert windows_per_half(5.0) == 5
    assert windows_per_half(3000.0) == 1


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = random.Random(7)
    hits = 0
    for _ in range(200):
        blocks = [
            Block(
                reference_ms=(2.0 * math.exp(rng.gauss(0, 0.05)),),
                candidate_ms=(math.exp(rng.gauss(0, 0.05)),),
            )
            for _ in range(12)
        ]
        low, high = estimate(blocks, 0.0, rng).ci95
        hits += low <= 2.0 <= high
    assert 176 <= hits <= 200
