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
from pike_hpc.evaluate.judge_plan import Plan  # noqa: E402 - torch
from pike_hpc.evaluate.judge_side import WrongAnswer  # noqa: E402 - torch
from pike_hpc.evaluate.judge_unequal import Timed, counted, too_many  # noqa: E402
from pike_hpc.evaluate.layout import buffer_bytes, lay_out  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402
from pike_hpc.evaluate.statistics import Block, StopRule  # noqa: E402

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
        self._full_ms, self.calls = ms, 0
        self._off = off if callable(off) else lambda call: off
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
        numbers.fill_(1.0 + (0.0 if wrong else self._off(self.calls)))
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


def in_each_block(windows):
    """Whether a call is one of so many at the end of its block."""
    return lambda call: call >= SETTLED and (call - SETTLED) % BLOCK >= BLOCK - windows


def test_half_of_the_windows_may_be_unequal():
    _, found, _ = watched(TWELFTH_MS, in_each_block(6))
    assert (found.windows, found.speedup) == (5 * 12, pytest.approx(1.0, abs=0.02))
    with pytest.raises(WrongAnswer, match="in 21 of 36 windows that count, and 20 may"):
        watched(TWELFTH_MS, in_each_block(7))


def test_two_more_than_half_may_be_unequal():
    """A call a block, after the pilot's one."""
    _, _, undisturbed = watched(SLOW_MS, lambda call: False)
    _, found, calls = watched(SLOW_MS, lambda call: 1 <= call <= 4)
    assert (calls, found.speedup) == (undisturbed, pytest.approx(1.0, abs=0.02))
    with pytest.raises(WrongAnswer, match="in 5 of 5 windows that count, and 4 may"):
        watched(SLOW_MS, lambda call: 1 <= call <= 5)


def test_unequal_windows_that_come_first_in_each_block_gain_nothing():
    def wrong(call):
        return call >= SETTLED and 1 <= (call - SETTLED) % BLOCK <= 6

    found = speedup(TWELFTH_MS, wrong, part=lambda call: 0.1 if wrong(call) else 1.0)
    assert found == pytest.approx(1.0, abs=0.02)


def test_nor_do_those_that_come_while_few_are_equal_and_these_are_fast():
    fast = {1, 2}
    found = speedup(SLOW_MS, lambda call: call == 2, part=lambda call: 0.5 if call in fast else 1.0)
    assert found == pytest.approx(1.0, abs=0.02)

    def early(call, windows):
        """Among so many at the beginning of one of the first three of five blocks."""
        block, place = divmod(call - SETTLED, BLOCK)
        return 0 <= block < 3 and 1 <= place <= windows

    found = speedup(
        TWELFTH_MS,
        lambda call: early(call, 6),
        part=lambda call: 0.5 if early(call, 8) else 1.0,
    )
    assert found == pytest.approx(1.0, abs=0.02)


def test_unequal_windows_before_the_plan_do_not_count():
    end = SETTLED + 5 * BLOCK

    def wrong(call):
        """As many as there may be in a first block, and all before; then the same again."""
        place = call if call < end else call - end + 2  # the constant is known by then
        return place < SETTLED + 9 and place != SETTLED

    watch, found, calls = watched(TWELFTH_MS, wrong)
    assert (calls, found.speedup) == (end, pytest.approx(1.0, abs=0.02))
    found, _ = watch.measure(FIVE_BLOCKS)
    assert found.speedup == pytest.approx(1.0, abs=0.02)


def test_a_near_tie_in_the_pilot_is_one_however_often_its_input_is_asked_about():
    found = speedup(TWELFTH_MS, lambda call: call < PILOT, place=lambda call: 0)
    assert found == pytest.approx(1.0, abs=0.02)


def test_near_ties_of_the_block_that_settles_do_not_count():
    wrong = {SETTLED - 2, SETTLED - 1, SETTLED + 1, SETTLED + 2}
    found = speedup(TWELFTH_MS, lambda call: call in wrong, place=lambda call: 0)
    assert found == pytest.approx(1.0, abs=0.02)
    with pytest.raises(WrongAnswer):
        speedup(TWELFTH_MS, lambda call: call in wrong | {SETTLED + 3}, place=lambda call: 0)


def test_a_wrong_call_says_which_it_was_of_those_so_far_and_by_how_much():
    """Calls that wake a runner are none of them: 4 of the pilot, 1 and 12 before, 3 of 12."""
    number = SETTLED + 3
    with pytest.raises(WrongAnswer) as raised:
        watched(TWELFTH_MS, lambda call: False, off=lambda call: 4.0 if call == number else 0.0)
    assert str(raised.value) == (
        "output 2 of 2: off by 4.0e+00 of the signal, over 1.0e+00, in call 20 of 29, held against "
        "the reference beside it"
    )


def test_precision_is_looked_at_where_whole_numbers_are_equal():
    """Spot checks and coarse calls: the others may be exact, and gain nothing."""
    watch, _, _ = watched(TWELFTH_MS, lambda call: call % 2 == 0, off=COARSE)
    assert watch.tally.part == 1.0
    assert len(watch.spotted) >= 5
    assert not any(views(SLOTS, seen.answer)[0].any() for seen in watch.spotted)


def block(reference_ms, took_ms, equal):
    return Timed(
        block=Block(reference_ms=(reference_ms,) * len(took_ms), candidate_ms=took_ms),
        equal=frozenset(equal),
    )


def test_an_unequal_window_counts_as_the_median_of_all_equal_ones_or_as_what_it_took():
    blocks = [block(2.0, (1.0, 0.1, 9.0), {0}), block(2.0, (1.2, 1.4), {0, 1})]
    assert [b.candidate_ms for b in counted(blocks)] == [(1.0, 1.2, 9.0), (1.2, 1.4)]


def test_that_is_of_the_reference_since_a_machine_has_fast_times_and_slow_ones():
    blocks = [block(2.0, (1.0, 1.0), {0, 1}), block(4.0, (0.1, 0.1), ())]
    assert [b.candidate_ms for b in counted(blocks)] == [(1.0, 1.0), (2.0, 2.0)]


def test_nothing_counts_while_all_are_unequal():
    assert counted([block(1.0, (1.0,), ())] * 3) == []
    assert not too_many([block(1.0, (1.0,), ())] * 4)
    assert too_many([block(1.0, (1.0,), ())] * 5)


def test_no_more_than_a_quarter_of_many_windows_are_looked_at():
    assert [Plan(n, 1, warm=True).looks for n in (1, 8, 12, 20, 40)] == [2, 2, 3, 5, 5]
