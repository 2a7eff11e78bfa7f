"""Windows in which whole numbers differ are not timed, on either side."""

import pytest

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    NULL_MS,
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.judge_timing import WrongAnswer  # noqa: E402 - torch
from pike_hpc.evaluate.layout import Slot  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402
from pike_hpc.evaluate.statistics import StopRule  # noqa: E402

pytestmark = pytest.mark.torch

FLAGS = Slot(name="flags", dtype="bool", shape=(12800,), offset=0, count=12800)
SLOW_MS, TWELFTH_MS = 60.0, 25.0 / 11.5
"""Of a call that has a block's half for itself, and of one of twelve that share it."""
PILOT, SETTLED, BLOCK = 4, 4 + 2 + 13, 13
"""Calls of the second kind: of the pilot; before a block counts, with two for the constant; of a
block, the warm one among them."""
FIVE_BLOCKS = StopRule(half_width=0.0, budget_s=0.0)


class Flagging(SimulatedRunner):
    """Answers with flags: one is wrong in the calls that `wrong` says, at `place` of the call."""

    sizes = (16, FLAGS.count)

    def __init__(self, machine, ms, wrong=None, place=None, part=1.0):
        super().__init__(machine, ms)
        self._full_ms, self._part = ms, part
        self._wrong, self._place = wrong or (lambda call: False), place or (lambda call: 65 * call)
        self.calls = 0

    def windows(self, op, inputs, answers):
        if op is Op.NULL:
            return NULL_MS
        answers[: len(inputs)] = 0
        wrong = self._wrong(self.calls)
        if wrong:
            answers[0, self._place(self.calls) % FLAGS.count] = 1
        self.calls += 1
        return NULL_MS + self._machine.work(self._full_ms * (self._part if wrong else 1.0))


def timed(ms, wrong, part=0.1, own_ms=None, place=None, rule=FIVE_BLOCKS):
    """The estimate of a program that takes `part` of its time in calls with a wrong flag."""
    machine = Machine(lambda now: 1.0, 7, noise=0.005)
    candidate = Flagging(machine, own_ms or ms, wrong, place, part)
    watch = our_watch(Flagging(machine, ms), candidate, slot=FLAGS)
    return watch.measure(rule)[0], candidate.calls


def one_in(period):
    return lambda call: call % period == 0


@pytest.mark.parametrize("ms", [SLOW_MS, TWELFTH_MS])
def test_what_is_left_out_in_two_of_five_calls_gains_nothing(ms):
    found, _ = timed(ms, lambda call: call % 5 in (1, 3), rule=TWELVE_BLOCKS)
    assert found.speedup == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("ms", [SLOW_MS, TWELFTH_MS])
def test_near_ties_in_many_calls_cost_no_honest_program_its_speedup(ms):
    found, _ = timed(ms, lambda call: call % 3 == 0, part=1.0, own_ms=ms / 2, rule=TWELVE_BLOCKS)
    assert found.speedup == pytest.approx(2.0, abs=0.05)


def test_a_block_counts_if_a_quarter_of_its_windows_is_timed():
    def wrong_in(windows):
        return lambda call: call >= SETTLED and (call - SETTLED) % BLOCK >= BLOCK - windows

    found, _ = timed(TWELFTH_MS, wrong_in(9))
    assert (found.windows, found.speedup) == (5 * 3, pytest.approx(1.0, abs=0.02))
    with pytest.raises(WrongAnswer):
        timed(TWELFTH_MS, wrong_in(10))


@pytest.mark.parametrize("counted", [0, 2])
def test_three_blocks_need_not_count_and_as_many_more_as_do(counted):
    """A call a block, after the pilot's one: `counted` good ones, and then bad ones."""

    def wrong_after(bad):
        return lambda call: counted < call <= counted + bad

    _, undisturbed = timed(SLOW_MS, lambda call: False)
    found, calls = timed(SLOW_MS, wrong_after(3 + counted))
    assert calls == undisturbed + 3 + counted
    assert found.speedup == pytest.approx(1.0, abs=0.02)
    with pytest.raises(WrongAnswer):
        timed(SLOW_MS, wrong_after(4 + counted))


def test_those_before_the_plan_stands_are_none_of_them():
    found, _ = timed(TWELFTH_MS, lambda call: PILOT <= call < SETTLED + 3 * BLOCK)
    assert found.speedup == pytest.approx(1.0, abs=0.02)


def test_a_near_tie_in_the_pilot_is_one_however_often_its_input_is_asked_about():
    found, _ = timed(TWELFTH_MS, lambda call: call < PILOT, place=lambda call: 0)
    assert found.speedup == pytest.approx(1.0, abs=0.02)


def test_nor_do_those_count_by_which_the_machine_settles():
    wrong = {SETTLED - 2, SETTLED - 1, SETTLED + 1, SETTLED + 2}
    found, _ = timed(TWELFTH_MS, lambda call: call in wrong, place=lambda call: 0)
    assert found.speedup == pytest.approx(1.0, abs=0.02)
    with pytest.raises(WrongAnswer):
        timed(TWELFTH_MS, lambda call: call in wrong | {SETTLED + 3}, place=lambda call: 0)
