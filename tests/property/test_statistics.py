"""Properties of the estimate that must hold for any machine."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.evaluate.statistics import Block, bootstrap_interval, estimate, without_null

latencies = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=5).map(tuple)
blocks = st.lists(
    st.builds(Block, reference_ms=latencies, candidate_ms=latencies), min_size=1, max_size=8
)


@given(blocks, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_interval_holds_the_estimate(measured, seed):
    found = estimate(measured, 0.0, random.Random(seed))
    assert 0 < found.ci95[0] <= found.speedup <= found.ci95[1]
    assert math.isfinite(found.ci95[1])


@given(blocks, st.floats(0.01, 100.0))
@settings(max_examples=40, deadline=None)
def test_a_slower_machine_changes_nothing(measured, factor):
    slower = [
        Block(
            reference_ms=tuple(x * factor for x in b.reference_ms),
            candidate_ms=tuple(x * factor for x in b.candidate_ms),
        )
        for b in measured
    ]
    here = estimate(measured, 0.0, random.Random(1)).speedup
    assert math.isclose(estimate(slower, 0.0, random.Random(1)).speedup, here, rel_tol=1e-9)


@given(blocks)
@settings(max_examples=40, deadline=None)
def test_swapping_the_sides_inverts_the_speedup(measured):
    swapped = [Block(reference_ms=b.candidate_ms, candidate_ms=b.reference_ms) for b in measured]
    here = estimate(measured, 0.0, random.Random(1)).speedup
    assert math.isclose(estimate(swapped, 0.0, random.Random(1)).speedup, 1 / here, rel_tol=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_interval_stays_within_the_values(values, seed):
    low, high = bootstrap_interval(values, random.Random(seed), resamples=200)
    assert min(values) <= low <= high <= max(values)


@given(st.floats(1e-3, 1e5), st.floats(0, 1e5))
def test_a_latency_stays_positive(latency, null):
    assert 0 < without_null(latency, null) <= latency
