"""Slow calls that a median does not show: whose they are, and what they come to."""

import itertools
import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.judge_uneven import MOST, Excess, evened, flipped  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402
from pike_hpc.evaluate.statistics import (  # noqa: E402
    LOOSE,
    Block,
    Null,
    StopRule,
    decide,
    estimate,
    without_null,
)

pytestmark = pytest.mark.torch

NULL = Null(ms=0.5, spread_ms=0.01)


RULE = StopRule(half_width=0.02, budget_s=2.0)
"""The judge's on a CPU."""


def found(blocks, null=NULL):
    """By the medians, as it counts, and whether it is uneven."""
    by_median = estimate(blocks, null)
    return by_median, *evened(by_median, blocks, null)


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


def stopped(block, ms, *, candidate):
    """The block with all windows of one half so much longer."""
    if candidate:
        return replace(block, candidate_ms=tuple(x + ms for x in block.candidate_ms))
    return replace(block, reference_ms=tuple(x + ms for x in block.reference_ms))


def test_who_is_slow_in_a_quarter_of_its_calls_is_as_fast_as_its_mean():
    by_median, even, uneven = found(blocks_of(slow_now_and_then(1.0, 31.0, 0.25), steady(4.0)))
    assert by_median.speedup == pytest.approx(4.0, rel=0.05)
    assert uneven
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
    by_median, even, uneven = found(blocks_of(candidate, reference))
    assert even is by_median
    assert not uneven


def test_a_reference_that_is_mostly_at_its_slowest_owes_nobody_anything():
    """Its median is over its mean: that is no excess of the candidate's."""
    by_median, even, _ = found(blocks_of(steady(1.0), slow_now_and_then(4.0, 8.0, 0.7)))
    assert even is by_median


def test_who_takes_longer_is_disturbed_for_longer():
    disturbed = slow_now_and_then(1.0, 2.0, 0.1), slow_now_and_then(4.0, 8.0, 0.1)
    uneven = [found(blocks_of(*disturbed[::-1], count=40, seed=n))[2] for n in range(20)]
    assert sum(uneven) <= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "is_slow", [lambda block: block % 4 == 3, lambda block: block % 10 in (2, 6, 9)]
)
def test_blocks_that_are_slow_throughout_are_slow(is_slow, seed):
    """Within each of them no call is slower than the others, and they are fewer than a third."""
    blocks = blocks_of(steady(1.0), steady(4.0), count=40, seed=seed)
    slow = [is_slow(n) for n in range(40)]
    blocks = [
        stopped(block, 20.0, candidate=True) if hit else block
        for block, hit in zip(blocks, slow, strict=True)
    ]
    truth = 4.0 / (1.0 + 20.0 * sum(slow) / 40)
    by_median, even, uneven = found(blocks)
    assert by_median.ci95[0] > 1.3 * truth
    assert uneven
    assert even.speedup == pytest.approx(truth, rel=0.02)
    assert even.ci95[0] < truth < even.ci95[1]


def test_who_is_slow_in_every_second_block_is_not_as_fast_as_the_centre_of_the_two():
    blocks = blocks_of(steady(1.0), steady(13.0), count=50)
    blocks[::2] = [stopped(block, 30.0, candidate=True) for block in blocks[::2]]
    by_median, even, uneven = found(blocks)
    assert by_median.speedup > 2.0 * 13.0 / 16.0
    assert uneven
    assert even.speedup == pytest.approx(13.0 / 16.0, rel=0.1)


def test_calls_that_are_slow_in_half_of_the_time_only_are_slow():
    calm = blocks_of(steady(1.0), steady(4.0), count=20)
    slow = blocks_of(slow_now_and_then(1.0, 20.0, 0.4), steady(4.0), count=20)
    _, even, uneven = found([*calm[:10], *slow[:10]])
    assert uneven
    assert even.ci95[0] < 4.0 / 4.8 < even.ci95[1]
    assert even.speedup == pytest.approx(4.0 / 4.8, rel=0.25)


@pytest.mark.parametrize("windows", [1, 3])
def test_long_calls_are_few_and_told_all_the_same(windows):
    """Of one window a half the blocks that are slow are slow throughout."""
    told = 0
    for seed in range(20):
        candidate = slow_now_and_then(10.0, 200.0, 0.2)
        blocks = blocks_of(candidate, steady(40.0), count=60, windows=windows, seed=seed)
        _, even, uneven = found(blocks)
        told += uneven and even.ci95[0] < 40.0 / 48.0 < even.ci95[1]
    assert told >= 17


def test_the_interval_of_one_that_is_holds_its_mean():
    told = holds = 0
    for seed in range(100):
        uneven = slow_now_and_then(1.0, 3.0, 0.25)
        blocks = blocks_of(uneven, steady(4.0), count=20, windows=6, seed=seed)
        _, even, uneven = found(blocks)
        told += uneven
        holds += even.ci95[0] <= 4.0 / 1.5 <= even.ci95[1]
    assert told >= 95
    assert holds >= 90


@pytest.mark.parametrize(("slow_ms", "spent_s"), [(3.0, 1.9), (40.0, 5.9)])
def test_measuring_goes_on_while_it_is_in_doubt_whose_slow_calls_are(slow_ms, spent_s):
    """One slow block of twenty: a machine's, or a program's. There is room for both."""
    blocks = blocks_of(steady(1.0), steady(4.0), count=20)
    assert decide(found(blocks)[1], 20, 0.3, RULE).stop
    blocks[1] = stopped(blocks[1], slow_ms, candidate=True)
    by_median, even, uneven = found(blocks)
    assert decide(by_median, 20, 0.3, RULE).stop
    assert not uneven
    assert even.speedup == by_median.speedup
    assert even.ci95[0] <= even.speedup / (1.0 + slow_ms / 20) * 1.02
    assert even.ci95[1] == by_median.ci95[1]
    assert not decide(even, 20, spent_s, RULE).stop
    assert decide(even, 20, 6.0, RULE).stop


def test_nor_does_it_end_while_the_mean_is_hardly_known():
    blocks = blocks_of(slow_now_and_then(1.0, 20.0, 0.1), steady(4.0), count=10, windows=10)
    _, even, uneven = found(blocks)
    assert uneven
    assert even.half_width > LOOSE
    assert not decide(even, 10, 2.0, RULE).stop


def test_a_machine_that_stops_the_reference_as_well_leaves_no_doubt():
    blocks = blocks_of(steady(1.0), steady(4.0), count=8)
    blocks[2] = stopped(blocks[2], 10.0, candidate=True)
    assert found(blocks)[1] is not found(blocks)[0]
    blocks[5] = stopped(blocks[5], 10.0, candidate=False)
    by_median, even, _ = found(blocks)
    assert even is by_median


def test_who_is_quick_in_some_blocks_makes_nobody_seem_stopped():
    """Beside calls that take half, or a fifth, of the usual one the reference is no slower."""
    blocks = []
    for n in range(48):
        quick, slow = n % 8 < 3, n % 8 == 7
        candidate = steady(0.4 if quick else 30.0 if slow else 2.0)
        blocks += blocks_of(candidate, steady(36.0), count=1, windows=1, seed=n)
    _, even, uneven = found(blocks)
    assert uneven
    assert even.speedup == pytest.approx(36.0 / 4.9, rel=0.1)


def test_stops_of_the_reference_weigh_as_much_as_those_of_a_program_ten_times_as_fast():
    """Of one window a half, each tenth of either side's 50 ms longer."""
    uneven = 0
    for seed in range(60):
        rng = random.Random(seed)
        blocks = blocks_of(steady(10.0), steady(100.0), count=40, windows=1, seed=seed)
        for candidate in (True, False):
            blocks = [
                stopped(block, 50.0, candidate=candidate) if rng.random() < 0.1 else block
                for block in blocks
            ]
        uneven += found(blocks)[2]
    assert uneven <= 2


@pytest.mark.parametrize(
    ("spread_ms", "slow_ms", "is_told"), [(0.01, 1.0, True), (0.1, 1.0, False), (0.1, 5.0, True)]
)
def test_calls_shorter_than_the_constant_are_told_beyond_its_noise(spread_ms, slow_ms, is_told):
    null = Null(ms=NULL.ms, spread_ms=spread_ms)
    blocks = blocks_of(slow_now_and_then(0.1, slow_ms, 0.25), steady(0.4))
    by_median, even, uneven = found(blocks, null)
    assert uneven == is_told == (even is not by_median)
    # As fast as a program whose calls all take as long as its mean one.
    mean_ms = NULL.ms + 0.75 * 0.1 + 0.25 * slow_ms
    as_long = without_null(mean_ms, null)
    assert not is_told or even.candidate_ms == pytest.approx(as_long, rel=0.15)


def test_what_the_constant_does_to_both_sides_is_nobodys_unevenness():
    def disturbed(ms):
        return lambda rng: ms + 0.25 * (rng.random() < 0.2) * rng.random()

    uneven = [found(blocks_of(disturbed(0.1), disturbed(4.0), seed=seed))[2] for seed in range(100)]
    assert sum(uneven) <= 5


def test_a_machine_that_is_disturbed_at_random_is_nobodys_unevenness():
    disturbed = slow_now_and_then(1.0, 6.0, 0.02), slow_now_and_then(4.0, 24.0, 0.02)
    uneven = [
        found(blocks_of(*disturbed, count=count, windows=13, seed=seed))[2]
        for seed in range(200)
        for count in (5, 8, 12)
    ]
    assert sum(uneven) <= 6  # of 600


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_stops_for_whole_blocks_is_nobodys_unevenness(seed):
    rng = random.Random(seed)
    blocks = blocks_of(steady(1.0), steady(4.0), seed=seed)
    for at in rng.sample(range(12), 3):  # all three in the candidate's half
        longer = tuple(ms + 50.0 * (i < 5) for i, ms in enumerate(blocks[at].candidate_ms))
        blocks[at] = replace(blocks[at], candidate_ms=longer)
    by_median, even, uneven = found(blocks)
    assert not uneven
    assert even.speedup == by_median.speedup


def test_the_chance_is_that_of_all_ways_to_give_signs():
    rng = random.Random(1)
    for _ in range(20):
        values = [rng.gauss(0.3, 1.0) for _ in range(9)]
        sums = [
            sum(s * x for s, x in zip(signs, values, strict=True))
            for signs in itertools.product((1, -1), repeat=9)
        ]
        exact = sum(one >= sum(values) - 1e-12 for one in sums) / len(sums)
        assert flipped(values) == pytest.approx(exact, abs=0.02)
    assert flipped([3.0] * 6) == 1 / 64
    assert flipped([-3.0] * 6) == 1.0
    assert flipped([0.0] * 6) == 1.0


def test_of_many_blocks_neighbours_are_taken_together():
    own_ms = tuple(1.0 if n % 40 == 0 else 0.0 for n in range(10 * MOST))
    seen = Excess(own_ms=own_ms, its_ms=(0.0,) * len(own_ms), usual_ms=0.2, left_ms=0.1)
    together = [sum(own_ms[i : i + 10]) - 0.05 for i in range(0, len(own_ms), 10)]
    assert seen.chance == pytest.approx(flipped(together), rel=1e-6)


class Uneven(SimulatedRunner):
    """Each fourth of its calls takes twenty times as long."""

    calls, each = 0, 4

    def windows(self, op, inputs, answers):
        took = super().windows(op, inputs, answers)
        if op is Op.NULL:
            return took
        self.calls += 1
        return took + (self._machine.work(19 * self._ms) if self.calls % self.each == 0 else 0.0)


@pytest.mark.parametrize(
    ("kind", "speedup", "tags"), [(SimulatedRunner, 4.0, set()), (Uneven, 4.0 / 5.75, {"uneven"})]
)
def test_a_stopwatch_tells_who_is(kind, speedup, tags):
    machine = Machine(lambda now_ms: 1.0, seed=3)
    watch = our_watch(SimulatedRunner(machine, 4.0), kind(machine, 1.0))
    even, told = watch.measure(TWELVE_BLOCKS)
    assert even.speedup == pytest.approx(speedup, rel=0.2)
    assert set(told) - {"noisy"} == tags  # the machine that simulates may be noisy itself


class Seldom(Uneven):
    """So does each ninth; a half has four that are timed."""

    each = 9


@pytest.mark.parametrize("seed", range(3))
def test_a_stopwatch_goes_on_until_it_can_tell(seed):
    """Of five blocks two or three are slow: medians agree, and it is open whose they are."""
    machine = Machine(lambda now_ms: 1.0, seed, noise=0.001)
    runners = SimulatedRunner(machine, 8.0), Seldom(machine, 2.0)
    watch = our_watch(*runners, clock=lambda: machine.now_ms / 1e3)
    even, tags = watch.measure(StopRule(half_width=0.1, budget_s=3.0))
    assert "uneven" in tags
    assert even.speedup == pytest.approx(4.0 / (1.0 + 19.0 / 9.0), rel=0.3)
