"""Slow calls that a median does not show: whose they are, and what they come to."""

import random

import pytest

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.judge_uneven import evened  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402
from pike_hpc.evaluate.statistics import Block, Null, estimate  # noqa: E402

pytestmark = pytest.mark.torch

NULL = Null(ms=0.5, spread_ms=0.01)


def found(blocks):
    by_median = estimate(blocks, NULL)
    return by_median, evened(by_median, blocks, NULL)


def blocks_of(candidate, reference, count=12, windows=20, seed=1):
    """Blocks of windows that either side draws, with the constant in them."""
    rng = random.Random(seed)
    draws = [
        [tuple(NULL.ms + side(rng) for _ in range(windows)) for side in (reference, candidate)]
        for _ in range(count)
    ]
    return [Block(reference_ms=r, candidate_ms=c) for r, c in draws]


def steady(ms):
    return lambda rng: ms * rng.lognormvariate(0.0, 0.02)


def slow_now_and_then(ms, slow_ms, part):
    return lambda rng: slow_ms if rng.random() < part else ms * rng.lognormvariate(0.0, 0.02)


def test_who_is_slow_in_a_quarter_of_its_calls_is_as_fast_as_its_mean():
    by_median, even = found(blocks_of(slow_now_and_then(1.0, 31.0, 0.25), steady(4.0)))
    assert by_median.speedup == pytest.approx(4.0, rel=0.05)
    assert even.speedup == pytest.approx(4.0 / 8.5, rel=0.25)
    assert even.ci95[0] < 4.0 / 8.5 < even.ci95[1]
    assert even.reference_ms / even.candidate_ms == pytest.approx(even.speedup, rel=0.05)


@pytest.mark.parametrize(
    ("candidate", "reference"),
    [
        (steady(1.0), steady(4.0)),
        (slow_now_and_then(1.0, 31.0, 0.25), slow_now_and_then(4.0, 124.0, 0.25)),
        (steady(1.0), slow_now_and_then(4.0, 124.0, 0.25)),
        (slow_now_and_then(1.0, 1.1, 0.25), steady(4.0)),
        (slow_now_and_then(1.0, 3.0, 0.005), steady(4.0)),
    ],
)
def test_who_is_no_more_uneven_than_the_reference_is_as_fast_as_its_median(candidate, reference):
    by_median, even = found(blocks_of(candidate, reference))
    assert even is by_median


def test_the_interval_of_one_that_is_holds_its_mean():
    told = holds = 0
    for seed in range(100):
        uneven = slow_now_and_then(1.0, 3.0, 0.25)
        blocks = blocks_of(uneven, steady(4.0), count=20, windows=6, seed=seed)
        by_median, even = found(blocks)
        told += even is not by_median
        holds += even.ci95[0] <= 4.0 / 1.5 <= even.ci95[1]
    assert told >= 95
    assert holds >= 85


@pytest.mark.parametrize(("spread_ms", "is_told"), [(0.01, True), (0.1, False)])
def test_calls_shorter_than_the_constant_are_told_beyond_its_noise(spread_ms, is_told):
    null = Null(ms=NULL.ms, spread_ms=spread_ms)
    blocks = blocks_of(slow_now_and_then(0.1, 1.0, 0.25), steady(0.4))
    by_median = estimate(blocks, null)
    even = evened(by_median, blocks, null)
    assert (even is not by_median) == is_told
    # As fast as a program whose calls all take as long as its mean one.
    assert not is_told or even.candidate_ms == pytest.approx(0.5 * (NULL.ms + 0.325), rel=0.1)


def test_what_the_constant_does_to_both_sides_is_nobodys_unevenness():
    def disturbed(ms):
        return lambda rng: ms + 0.25 * (rng.random() < 0.2) * rng.random()

    found_uneven = 0
    for seed in range(100):
        blocks = blocks_of(disturbed(0.1), disturbed(4.0), seed=seed)
        by_median, even = found(blocks)
        found_uneven += even is not by_median
    assert found_uneven <= 5


def test_a_machine_that_is_disturbed_at_random_is_nobodys_unevenness():
    disturbed = slow_now_and_then(1.0, 6.0, 0.02), slow_now_and_then(4.0, 24.0, 0.02)
    found_uneven = 0
    for seed in range(200):
        for count in (5, 8, 12):
            by_median, even = found(blocks_of(*disturbed, count=count, windows=13, seed=seed))
            found_uneven += even is not by_median
    assert found_uneven <= 6  # of 600


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_stops_for_whole_blocks_is_nobodys_unevenness(seed):
    rng = random.Random(seed)
    blocks = blocks_of(steady(1.0), steady(4.0), seed=seed)
    for at in rng.sample(range(12), 3):  # all three in the candidate's half
        stopped = tuple(ms + 50.0 * (i < 5) for i, ms in enumerate(blocks[at].candidate_ms))
        blocks[at] = Block(reference_ms=blocks[at].reference_ms, candidate_ms=stopped)
    by_median, even = found(blocks)
    assert even is by_median


def test_long_calls_are_few_and_stay_with_their_interval():
    candidate = slow_now_and_then(100.0, 300.0, 0.25)
    by_median, even = found(blocks_of(candidate, steady(400.0), windows=1))
    assert even is by_median


class Uneven(SimulatedRunner):
    """Each fourth of its calls takes twenty times as long."""

    calls = 0

    def windows(self, op, inputs, answers):
        took = super().windows(op, inputs, answers)
        if op is Op.NULL:
            return took
        self.calls += 1
        return took + (self._machine.work(19 * self._ms) if self.calls % 4 == 0 else 0.0)


@pytest.mark.parametrize(
    ("kind", "speedup", "tags"), [(SimulatedRunner, 4.0, set()), (Uneven, 4.0 / 5.75, {"uneven"})]
)
def test_a_stopwatch_tells_who_is(kind, speedup, tags):
    machine = Machine(lambda now_ms: 1.0, seed=3)
    watch = our_watch(SimulatedRunner(machine, 4.0), kind(machine, 1.0))
    even, told = watch.measure(TWELVE_BLOCKS)
    assert even.speedup == pytest.approx(speedup, rel=0.2)
    assert set(told) - {"noisy"} == tags  # the machine that simulates may be noisy itself
