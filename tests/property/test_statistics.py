"""Properties of the estimate that must hold for any machine."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.evaluate.centre import MOST, centre
from pike_hpc.evaluate.statistics import Block, Null, estimate, without_null

FREE = Null(ms=0.0, spread_ms=0.0)
"""A protocol that takes no time of its own."""

latencies = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=5).map(tuple)
blocks = st.lists(
    st.builds(Block, reference_ms=latencies, candidate_ms=latencies), min_size=1, max_size=8
)
numbers = st.lists(st.floats(-5, 5), min_size=1, max_size=2 * MOST)


@given(blocks)
@settings(max_examples=40)
def test_the_interval_holds_the_estimate(measured):
    found = estimate(measured, FREE)
    assert 0 < found.ci95[0] <= found.speedup <= found.ci95[1]
    assert math.isfinite(found.ci95[1])


@given(blocks, st.floats(0.01, 100.0))
@settings(max_examples=40)
def test_a_slower_machine_changes_nothing(measured, factor):
    slower = [
        Block(
            reference_ms=tuple(x * factor for x in b.reference_ms),
            candidate_ms=tuple(x * factor for x in b.candidate_ms),
        )
        for b in measured
    ]
    here = estimate(measured, FREE).speedup
    assert math.isclose(estimate(slower, FREE).speedup, here, rel_tol=1e-9)


@given(blocks)
@settings(max_examples=40)
def test_swapping_the_sides_inverts_the_speedup(measured):
    swapped = [Block(reference_ms=b.candidate_ms, candidate_ms=b.reference_ms) for b in measured]
    here = estimate(measured, FREE).speedup
    assert math.isclose(estimate(swapped, FREE).speedup, 1 / here, rel_tol=1e-9)


@given(numbers)
@settings(max_examples=60)
def test_the_centre_lies_among_the_values(values):
    found = centre(values)
    assert min(values) - 1e-12 <= found.middle <= max(values) + 1e-12
    assert found.low <= found.middle <= found.high
    if len(values) > 5:
        assert min(values) - 1e-12 <= found.low
        assert found.high <= max(values) + 1e-12


@given(numbers, st.floats(-3, 3), st.floats(0.1, 10))
@settings(max_examples=60)
def test_the_centre_moves_and_grows_with_the_values(values, shift, factor):
    here = centre(values)
    there = centre([factor * x + shift for x in values])
    assert math.isclose(there.middle, factor * here.middle + shift, abs_tol=1e-9)
    if len(values) > 1:
        assert math.isclose(there.low, factor * here.low + shift, abs_tol=1e-9)
        assert math.isclose(there.high, factor * here.high + shift, abs_tol=1e-9)


@given(numbers)
@settings(max_examples=60)
def test_the_interval_of_the_negatives_is_the_negative(values):
    here, there = centre(values), centre([-x for x in values])
    assert math.isclose(there.low, -here.high, abs_tol=1e-9)
    assert math.isclose(there.high, -here.low, abs_tol=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=10, max_size=MOST), st.floats(-1e6, 1e6))
@settings(max_examples=60)
def test_one_wild_value_of_ten_moves_nothing_out_of_the_others(values, wild):
    found = centre([*values, wild])
    assert min(values) <= found.middle <= max(values)


@given(st.floats(1e-3, 1e5), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_latency_stays_positive(latency, null, spread):
    assert 0 < without_null(latency, Null(ms=null, spread_ms=spread)) <= max(latency, null / 2)


@given(blocks, st.lists(st.floats(0.01, 1e4), min_size=1, max_size=20))
@settings(max_examples=40)
def test_whatever_the_constant_the_interval_holds_the_estimate(measured, windows):
    found = estimate(measured, Null.of(windows))
    assert 0 < found.ci95[0] <= found.speedup <= found.ci95[1]
    assert math.isfinite(found.ci95[1])
