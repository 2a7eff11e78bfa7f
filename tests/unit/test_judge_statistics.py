"""When measuring stops, and what the null constant may take off."""

import math
import random
from statistics import fmean, stdev

import pytest

from pike_hpc.evaluate.centre import LONE, centre, joined
from pike_hpc.evaluate.statistics import (
    APART,
    APART_MOST,
    APART_SPREADS,
    CLOCK_PART,
    NULL_FLOOR,
    SURE,
    Block,
    Estimate,
    Null,
    StopRule,
    apart,
    candidate_first,
    clock_step,
    decide,
    estimate,
    windows_per_half,
    without_null,
)

RULE = StopRule(half_width=0.02, budget_s=2.0)
FREE = Null(ms=0.0, spread_ms=0.0)
"""A protocol that takes no time of its own."""


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
    result = estimate(
        [block] * 5, Null(ms=0.5, spread_ms=0.0)
    )  # the step that repeating shows is 0.0001
    assert result.speedup == pytest.approx(2.0, rel=1e-3)
    assert result.half_width == pytest.approx(0.0, abs=1e-3)
    assert (result.reference_ms, result.candidate_ms) == (4.0001, 2.0)
    assert result.windows == 15


def measured(null_ms, reference_ms, candidate_ms, rng, *, noise=0.01, halves=0.0):
    """An estimate from 8 blocks: the constant, two models on top of it, and noise of all of it.

    `noise` is that of a window, `halves` that of all windows of a half.
    """

    def half(model_ms, windows=10):
        slow = rng.gauss(0, halves)
        total_ms = null_ms + model_ms
        return tuple(total_ms * math.exp(slow + rng.gauss(0, noise)) for _ in range(windows))

    blocks, nulls = [], []
    for _ in range(8):
        blocks.append(Block(reference_ms=half(reference_ms), candidate_ms=half(candidate_ms)))
        nulls += half(0.0, 4)
    return estimate(blocks, Null.of(nulls, bounded=True))


def bounded(ms, spread_ms):
    return Null(ms=ms, spread_ms=spread_ms, bounded=True)


def test_the_constant_takes_all_of_itself_where_it_is_known_well_and_physics_bounds_it():
    assert without_null(1.0, bounded(0.75, 0.0075)) == 0.25
    assert without_null(1.0, bounded(0.9, 0.0)) == pytest.approx(0.1)


def test_what_is_left_is_never_less_than_the_noise_of_the_constant_nor_more_than_half_for_it():
    assert without_null(1.0, bounded(0.9, 0.1)) == pytest.approx(SURE * 0.1)
    assert without_null(1.0, bounded(0.9, 5.0)) == pytest.approx(NULL_FLOOR)
    assert 0 < without_null(1.0, bounded(1.0, 0.0)) < 0.1


@pytest.mark.parametrize("null_ms", [0.06, 0.6, 60.0])
def test_elsewhere_nobody_saves_more_than_half_of_what_was_measured(null_ms):
    """However large: on a CPU a ReLU of 32 MB that writes into its slot was 17 times as fast."""
    steady = Null(ms=null_ms, spread_ms=0.0)
    assert without_null(1.01 * null_ms, steady) == pytest.approx(0.505 * null_ms)
    assert without_null(3 * null_ms, steady) == pytest.approx(2 * null_ms)


@pytest.mark.parametrize("total_ms", [0.02, 0.04, 0.1, 0.152])
def test_who_takes_less_than_the_constant_gains_no_more_than_who_takes_no_time(total_ms):
    """Of a LeNet5 of 75 us: a runner's loop that was replaced in the program's own process."""
    null = Null(ms=0.152, spread_ms=0.0)
    assert without_null(0.227, null) / without_null(total_ms, null) == pytest.approx(0.1135 / 0.076)


@pytest.mark.parametrize("null", [bounded(3.0, 0.03), Null(ms=3.0, spread_ms=0.03)])
def test_who_measures_less_never_seems_to_take_more(null):
    left = [without_null(ms / 100, null) for ms in range(1, 500)]
    assert left == sorted(left)


def test_the_spread_of_the_constant_is_that_of_most_of_its_windows():
    assert Null.of([1.0, 2.0, 3.0, 4.0, 500.0]) == Null(ms=3.0, spread_ms=2.0)
    assert Null.of([3.0]) == Null(ms=3.0, spread_ms=3.0)
    with pytest.raises(ValueError, match="no"):
        Null.of([])


def test_a_program_that_takes_less_than_its_copies_keeps_its_speedup():
    """A softmax over a large matrix: copies in and out are three quarters of what is measured."""
    rng = random.Random(4)
    many = [measured(3.0, 1.0, 0.6, rng) for _ in range(300)]
    speedups = sorted(found.speedup for found in many)
    assert speedups[150] == pytest.approx(1 / 0.6, rel=0.01)
    assert speedups[7] > 0.95 / 0.6
    assert speedups[-8] < 1.05 / 0.6
    held = sum(found.ci95[0] <= 1 / 0.6 <= found.ci95[1] for found in many)
    assert held >= 0.93 * len(many)
    assert max(found.ci95[1] / found.ci95[0] for found in many) < 1.3


@pytest.mark.parametrize("null_ms", [0.1, 1.0])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_an_unchanged_model_within_the_noise_of_the_constant_stays_near_1(part, null_ms):
    """An 8 x 64 Linear: next to nothing beside the protocol, and noise over noise is anything."""
    rng = random.Random(5)
    both_ms = null_ms * part
    noise = {"noise": 0.02, "halves": 0.02}
    many = [measured(null_ms, both_ms, both_ms, rng, **noise) for _ in range(300)]
    speedups = sorted(found.speedup for found in many)
    assert speedups[3] > 0.72
    assert speedups[-4] < 1.35
    assert speedups[150] == pytest.approx(1.0, abs=0.05)
    assert sum(found.ci95[0] <= 1.0 <= found.ci95[1] for found in many) >= 0.93 * len(many)


def test_the_interval_contains_what_the_constant_may_be_off_by():
    """Blocks that agree: were the constant a little larger, both latencies would be less by it."""
    times = [(4.0 + 1e-9 * i, 3.6 + 1e-9 * i) for i in range(9)]  # no clock's step
    blocks = [Block(reference_ms=(a,), candidate_ms=(b,)) for a, b in times]
    null = bounded(3.0, 0.03)
    off_ms = null.half_width_ms(9)
    low, high = estimate(blocks, null).ci95
    assert low < (1.0 + off_ms) / (0.6 + off_ms)
    assert high > (1.0 - off_ms) / (0.6 - off_ms)
    known = estimate(blocks, bounded(3.0, 0.0))
    assert known.half_width == pytest.approx(0.0, abs=1e-6)
    assert high / low > known.ci95[1] / known.ci95[0]
    assert 0.0 < null.half_width_ms(36) < 0.51 * off_ms


def test_processes_that_differ_in_the_constant_differ_more_where_little_else_is_left():
    def half(total_ms):
        times = [(total_ms * (1 + 2e-9 * i), total_ms * (1 + 3e-9 * i + 1e-9)) for i in range(5)]
        blocks = [Block(reference_ms=(a,), candidate_ms=(b,)) for a, b in times]
        return math.log(estimate(blocks, bounded(3.0, 0.0)).ci95[1])

    assert half(3000.0) == pytest.approx(APART, rel=0.01)
    assert half(4.0) == pytest.approx(4 * APART)


def test_no_blocks_is_an_error():
    with pytest.raises(ValueError, match="no blocks"):
        estimate([], FREE)


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
    low, high = estimate(blocks, FREE).ci95
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
        result = estimate(blocks, FREE)
        assert decide(result, 5, 0.1, RULE).stop  # more blocks would not narrow it
        held += result.ci95[0] <= 2.0 <= result.ci95[1]
    assert 0.93 <= held / 2000 <= 0.97


def block_of(rng, spread, drift=0.0, windows=5):
    """A block of a candidate that takes as long as the reference, `drift` slower than one ms."""

    def half():
        return tuple(math.exp(drift + rng.gauss(0, spread)) for _ in range(windows))

    return Block(reference_ms=half(), candidate_ms=half())


def seen(blocks):
    """How far processes may lie apart where there is no constant."""
    return apart(blocks, 1.0, 1.0, FREE)


def test_processes_of_a_noisy_program_lie_further_apart():
    rng = random.Random(1)
    noisy = [block_of(rng, 0.02) for _ in range(40)]
    assert seen(noisy) == pytest.approx(APART_SPREADS * 0.02, rel=0.1)
    assert seen([block_of(rng, 0.001) for _ in range(40)]) == pytest.approx(APART)
    assert seen([block_of(rng, 0.3) for _ in range(40)]) == pytest.approx(APART_MOST)


@pytest.mark.parametrize("windows", [2, 5])
def test_a_machine_that_slows_down_says_nothing_of_processes(windows):
    rng = random.Random(1)
    drifting = [block_of(rng, 0.004, 0.02 * i, windows) for i in range(40)]
    assert seen(drifting) == pytest.approx(APART)


@pytest.mark.parametrize("windows", [1, 2, 5])
def test_nor_does_one_that_is_throttled(windows):
    rng = random.Random(1)
    throttled = [block_of(rng, 0.004, 0.3 * (i > 10), windows) for i in range(40)]
    assert seen(throttled) == pytest.approx(APART)


def test_with_one_window_a_half_halves_show_the_noise():
    rng = random.Random(1)
    noisy = [block_of(rng, 0.02, windows=1) for _ in range(400)]
    assert seen(noisy) == pytest.approx(APART_SPREADS * 0.02, rel=0.1)
    assert seen(noisy[:1]) == pytest.approx(APART)


def test_what_the_constant_hides_of_processes_weighs_by_what_is_left():
    rng = random.Random(1)
    noisy = [block_of(rng, 0.3) for _ in range(40)]
    steps = [1 + 1e-9 * i for i in range(5)]
    blocks = [Block(reference_ms=b.reference_ms, candidate_ms=tuple(steps)) for b in noisy]
    found = apart(blocks, 1.0, 0.5, Null(ms=3.0, spread_ms=0.0))
    assert found == pytest.approx(math.hypot(APART_MOST * 4, APART * 7) / math.sqrt(2))


def test_noise_of_one_side_alone_widens_the_interval_too():
    rng = random.Random(1)

    def half(noise, its_noise):
        """Of the interval of twelve blocks whose medians agree, however noisy their windows are."""
        blocks = []
        for i in range(12):
            sides = []
            for spread in (noise, its_noise):
                above = [abs(rng.gauss(0, spread)) for _ in range(4)]
                logs = [x for each in above for x in (each, -each)]
                sides.append(tuple((1 + 1e-9 * i) * math.exp(x) for x in (*logs, 0.0)))
            blocks.append(Block(reference_ms=sides[0], candidate_ms=sides[1]))
        return math.log(estimate(blocks, FREE).ci95[1])

    quiet, both = half(0.001, 0.001), half(0.2, 0.2)
    assert quiet == pytest.approx(APART, rel=0.01)
    assert both == pytest.approx(APART_MOST, rel=0.01)
    one = math.hypot(APART, APART_MOST) / math.sqrt(2)
    assert half(0.001, 0.2) == pytest.approx(one, rel=0.01)
    assert half(0.2, 0.001) == pytest.approx(one, rel=0.01)


def test_readings_that_do_not_repeat_show_no_step():
    assert clock_step([Block(reference_ms=(2.0, 2.0), candidate_ms=(2.0,))]) == 0.0
    assert clock_step([Block(reference_ms=(2.0, 2.1), candidate_ms=(1.0,))]) == 0.0


@pytest.mark.parametrize("count", [2, 5, 12, 40])
def test_numbers_that_say_all_or_nothing_of_a_sum_leave_the_interval_as_it_was(count):
    assert joined(0.02, 0.0, count) == pytest.approx(0.02)
    assert joined(0.0, 0.02, count) == pytest.approx(0.02)
    assert joined(1e-300, 0.02, count) == pytest.approx(0.02)
    assert joined(0.0, 0.0, count) == 0.0


@pytest.mark.parametrize("count", [5, 8, 20])
def test_a_sum_of_what_is_known_and_what_few_numbers_show_is_held_as_often_as_said(count):
    """Student's own interval of a mean, and a shift whose law is known: either is half of it."""
    rng = random.Random(count)
    student = {5: 2.776, 8: 2.365, 20: 2.093}[count]
    held = plain = 0
    for _ in range(8000):
        values = [rng.gauss(0, math.sqrt(count)) for _ in range(count)]
        off = abs(fmean(values) + rng.gauss(0, 1))
        half = student * stdev(values) / math.sqrt(count)
        held += off < joined(half, 1.96, count)
        plain += off < math.hypot(half, 1.96)
    assert 0.943 < held / 8000 < 0.957
    assert plain >= held
    if count == 5:
        assert plain / 8000 > 0.96, "the root of the sum of squares does as well"


@pytest.mark.parametrize(
    ("count", "student", "freedom", "of_the_sum", "off"),
    [
        (5, 2.776, 16, 2.120, 0.015),
        (8, 2.365, 28, 2.048, 0.005),
        (20, 2.093, 76, 1.992, 0.002),
    ],
)
def test_equal_parts_have_four_times_the_degrees_of_freedom(
    count, student, freedom, of_the_sum, off
):
    """Student's quantiles at 0.975 from any table of them."""
    assert freedom == 4 * (count - 1)
    wanted = of_the_sum * math.sqrt(2)
    assert joined(student, 1.96, count) == pytest.approx(wanted, rel=off)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 48])
def test_a_sum_is_never_surer_than_its_parts(count):
    for known in (0.001, 0.01, 0.1, 0.3, 0.5, 1.0, 10.0):
        assert max(1.0, known) <= joined(1.0, known, count) <= math.hypot(1.0, known) + 1e-9


def test_a_single_number_has_no_law():
    assert joined(LONE, 0.3, 1) == math.hypot(LONE, 0.3)


def five(reference_ms, candidate_ms, spread=0.0):
    """Five blocks of one window a half, whose logarithms are `spread` apart and symmetric."""
    steps = [spread * (i - 2) for i in range(5)]
    return [
        Block(reference_ms=(reference_ms * math.exp(x),), candidate_ms=(candidate_ms,))
        for x in steps
    ]


def log_half(found):
    """Half of an interval that is symmetric as a logarithm."""
    return math.log(found.ci95[1] / found.ci95[0]) / 2


def test_the_stated_interval_joins_what_blocks_show_and_what_lies_between_processes():
    blocks = five(2.0, 1.0, 0.008)
    shown = centre([math.log(2.0) + 0.008 * (i - 2) for i in range(5)])
    half = (shown.high - shown.low) / 2
    found = estimate(blocks, FREE)
    # Its windows differ by a spread that is seen between halves, the candidate's don't at all.
    others = apart(blocks, 2.0, 1.0, FREE)
    assert log_half(found) == pytest.approx(joined(half, others, 5), rel=1e-6)
    assert log_half(found) < 0.95 * math.hypot(half, others), "squares add up to more"
    assert found.half_width == pytest.approx(math.sinh(half), rel=1e-6), "and nothing more narrows"


def test_a_coarse_clocks_step_is_joined_to_what_lies_between_processes():
    blocks = [Block(reference_ms=(5.0, 5.1, 5.0), candidate_ms=(2.5, 2.5, 2.4))] * 5
    unseen = CLOCK_PART * 0.1 * (1 / 5.0 + 1 / 2.5)
    assert estimate(blocks, FREE).half_width == pytest.approx(math.sinh(unseen), rel=1e-6)
    others = apart(blocks, 5.0, 2.5, FREE)
    assert log_half(estimate(blocks, FREE)) == pytest.approx(math.hypot(unseen, others), rel=1e-6)


def test_what_the_constant_may_be_off_by_is_in_the_interval_and_in_what_stops_measuring():
    blocks, null = five(4.0, 3.2, 1e-7), bounded(2.4, 0.02)
    shift = null.half_width_ms(5) * (1 / 0.8 - 1 / 1.6)
    found = estimate(blocks, null)
    assert found.half_width == pytest.approx(math.sinh(shift), rel=1e-3)
    others = apart(blocks, 1.6, 0.8, null)
    assert log_half(found) == pytest.approx(math.hypot(shift, others), rel=1e-3)
