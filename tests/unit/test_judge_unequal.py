"""Windows in which whole numbers differ count as the others do, or as what they took if more."""

import pytest

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    NULL_MS,
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.judge_timing import WrongAnswer  # noqa: E402 - torch
from pike_hpc.evaluate.layout import buffer_bytes, lay_out  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402
from pike_hpc.evaluate.statistics import StopRule  # noqa: E402

pytestmark = pytest.mark.torch

SLOTS = lay_out([("flags", "bool", (12800,)), ("y", "float32", (4,))])
SLOW_MS, TWELFTH_MS = 60.0, 25.0 / 11.5
"""Of a call that has a block's half for itself, and of one of twelve that share it."""
PILOT, SETTLED, BLOCK = 4, 4 + 2 + 13, 13
"""Calls of the second kind: of the pilot; before a block counts, with two for the constant; of a
block, the warm one among them."""
FIVE_BLOCKS = StopRule(half_width=0.0, budget_s=0.0)
COARSE = 0.5


class Flagging(SimulatedRunner):
    """Takes a part of its time that hangs on the call, and answers with flags and numbers.

    One flag is wrong in the calls that `wrong` says, at `place` of the call; in all others the
    numbers are off by `off`.
    """

    sizes = (16, buffer_bytes(SLOTS))

    def __init__(self, machine, ms, wrong=None, part=None, place=None, off=0.0):
        super().__init__(machine, ms)
        self._full_ms, self._off, self.calls = ms, off, 0
        self._wrong = wrong or (lambda call: False)
        self._part = part or (lambda call: 1.0)
        self._place = place or (lambda call: 65 * call)

    def windows(self, op, inputs, answers):
        if op is Op.NULL:
            return NULL_MS
        flags, numbers = views(SLOTS, answers[0])
        flags.zero_()
        wrong = self._wrong(self.calls)
        flags[self._place(self.calls) % len(flags)] = wrong
        numbers.fill_(1.0 + (0.0 if wrong else self._off))
        took = self._machine.work(self._full_ms * self._part(self.calls))
        self.calls += 1
        return NULL_MS + took


def watched(ms, wrong, rule=FIVE_BLOCKS, own_ms=None, **more):
    """The stopwatch, the estimate of such a program, and its calls."""
    machine = Machine(lambda now: 1.0, 7, noise=0.005)
    candidate = Flagging(machine, own_ms or ms, wrong, **more)
    watch = our_watch(
        Flagging(machine, ms), candidate, slots=SLOTS, usual=COARSE / 2, limit=1.0, checks=1000
    )
    found, _ = watch.measure(rule)
    return watch, found, candidate.calls


def speedup(ms, wrong, **more):
    return watched(ms, wrong, **more)[1].speedup


each_length = pytest.mark.parametrize("ms", [SLOW_MS, TWELFTH_MS])


@each_length
def test_what_is_left_out_in_two_of_five_calls_gains_nothing(ms):
    def wrong(call):
        return call % 5 in (1, 3)

    found = speedup(ms, wrong, part=lambda call: 0.1 if wrong(call) else 1.0, rule=TWELVE_BLOCKS)
    assert found == pytest.approx(1.0, abs=0.02)


@each_length
def test_nor_does_it_gain_to_spoil_the_slow_ones(ms):
    """Two of five are fast, and two of the others are spoiled or not."""

    def part(call):
        return 0.4 if call % 5 in (0, 2) else 1.0

    spoiled = speedup(ms, lambda call: call % 5 in (1, 3), part=part, rule=TWELVE_BLOCKS)
    assert spoiled == pytest.approx(
        speedup(ms, lambda call: False, part=part, rule=TWELVE_BLOCKS), rel=0.01
    )


@each_length
def test_near_ties_in_many_calls_cost_no_honest_program_its_speedup(ms):
    found = speedup(ms, lambda call: call % 3 == 0, own_ms=ms / 2, rule=TWELVE_BLOCKS)
    assert found == pytest.approx(2.0, abs=0.05)


def test_half_of_the_windows_may_be_so():
    def wrong_in(windows):
        return lambda call: call >= SETTLED and (call - SETTLED) % BLOCK >= BLOCK - windows

    _, found, _ = watched(TWELFTH_MS, wrong_in(6))
    assert (found.windows, found.speedup) == (5 * 12, pytest.approx(1.0, abs=0.02))
    with pytest.raises(WrongAnswer):
        watched(TWELFTH_MS, wrong_in(7))


def test_nor_does_it_gain_where_those_come_first_in_each_block():
    def wrong(call):
        return call >= SETTLED and 1 <= (call - SETTLED) % BLOCK <= 6

    found = speedup(TWELFTH_MS, wrong, part=lambda call: 0.1 if wrong(call) else 1.0)
    assert found == pytest.approx(1.0, abs=0.02)


def test_another_timing_begins_anew():
    """With as many as there may be in each of its blocks, the one to settle among them."""
    again = SETTLED + 5 * BLOCK
    most = {SETTLED: 9, **{SETTLED + n * BLOCK: 6 for n in range(1, 5)}, again + SETTLED - BLOCK: 9}

    def wrong(call):
        return any(start < call <= start + count for start, count in most.items())

    watch, _, calls = watched(TWELFTH_MS, wrong)
    assert calls == again
    found, _ = watch.measure(FIVE_BLOCKS)
    assert found.speedup == pytest.approx(1.0, abs=0.02)


def test_and_three_more_which_do_not_count_while_there_are_no_others():
    """A call a block, after the pilot's one."""
    _, _, undisturbed = watched(SLOW_MS, lambda call: False)
    _, found, calls = watched(SLOW_MS, lambda call: 1 <= call <= 6)
    assert (calls, found.speedup) == (undisturbed + 6, pytest.approx(1.0, abs=0.02))
    with pytest.raises(WrongAnswer):
        watched(SLOW_MS, lambda call: 1 <= call <= 7)
    _, found, calls = watched(
        SLOW_MS, lambda call: 2 <= call <= 5, part=lambda call: 0.1 ** (call in (2, 3))
    )
    assert (calls, found.speedup) == (undisturbed, pytest.approx(1.0, abs=0.02))


def test_those_before_the_plan_stands_are_none_of_them():
    def wrong_until(end):
        return lambda call: SETTLED - 9 <= call < SETTLED or SETTLED < call < end

    assert speedup(TWELFTH_MS, wrong_until(SETTLED + 10)) == pytest.approx(1.0, abs=0.02)
    with pytest.raises(WrongAnswer):
        speedup(TWELFTH_MS, wrong_until(SETTLED + 11))


def test_a_near_tie_in_the_pilot_is_one_however_often_its_input_is_asked_about():
    found = speedup(TWELFTH_MS, lambda call: call < PILOT, place=lambda call: 0)
    assert found == pytest.approx(1.0, abs=0.02)


def test_nor_do_those_count_by_which_the_machine_settles():
    wrong = {SETTLED - 2, SETTLED - 1, SETTLED + 1, SETTLED + 2}
    found = speedup(TWELFTH_MS, lambda call: call in wrong, place=lambda call: 0)
    assert found == pytest.approx(1.0, abs=0.02)
    with pytest.raises(WrongAnswer):
        speedup(TWELFTH_MS, lambda call: call in wrong | {SETTLED + 3}, place=lambda call: 0)


def test_precision_is_looked_at_where_whole_numbers_are_equal():
    """Spot checks and coarse calls: the others may be exact, and are not what is timed."""
    watch, _, _ = watched(TWELFTH_MS, lambda call: call % 2 == 0, off=COARSE)
    assert watch.coarse == 1.0
    assert len(watch.spotted) >= 5
    assert not any(views(SLOTS, seen.answer)[0].any() for seen in watch.spotted)
