"""What a timing does before anything counts, on a simulated machine."""

import pytest

pytest.importorskip("torch")

from exploits.simulated_machine import Machine, SimulatedRunner, our_watch

from pike_hpc.evaluate.judge_plan import SLOW_MS
from pike_hpc.evaluate.judge_timing import SLOW_PILOT_CALLS, SLOW_PILOT_MS
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.statistics import StopRule

FIVE_BLOCKS = StopRule(half_width=0.0, budget_s=0.0)


class Faulting(SimulatedRunner):
    """Twice as slow for its first calls, in which its pages fault."""

    def __init__(self, machine, ms, faults):
        super().__init__(machine, ms)
        self._calm_ms, self._faults, self.calls = ms, faults, 0

    def windows(self, op, inputs, answers):
        if op is not Op.NULL:
            self.calls += 1
            self._ms = self._calm_ms * (2 if self.calls <= self._faults else 1)
        return super().windows(op, inputs, answers)


def timed(ms, faults=0, **more):
    """The speedup of a program that is the reference but for its faults; both sides' calls."""
    machine = Machine(lambda now: 1.0, 5, noise=0.001)
    runners = Faulting(machine, ms, faults), Faulting(machine, ms, 0)
    found, _ = our_watch(*runners, **more).measure(FIVE_BLOCKS)
    return found.speedup, [runner.calls for runner in runners]


def test_pages_that_fault_late_make_no_speedup():
    slow = 2 * SLOW_MS
    assert timed(slow, 14, on_cpu=True)[0] == pytest.approx(1.0, abs=0.02)
    assert timed(slow, 14)[0] > 1.3, "nothing was tried"


def test_who_is_slower_still_is_not_waited_for_as_often():
    calm = timed(SLOW_PILOT_MS / 3.5)[1]
    patient = timed(SLOW_PILOT_MS / 3.5, on_cpu=True)[1]
    assert [late - soon for late, soon in zip(patient, calm, strict=True)] == [3, 3]
    patient = timed(2 * SLOW_MS, on_cpu=True)[1]
    calm = timed(2 * SLOW_MS)[1]
    more = SLOW_PILOT_CALLS - 1
    assert [late - soon for late, soon in zip(patient, calm, strict=True)] == [more, more]


def test_the_budget_begins_after_the_pilot():
    """Else a slow program's pilot would use it up before the first block."""
    machine = Machine(lambda now: 1.0, 5)
    runners = SimulatedRunner(machine, 2 * SLOW_MS), SimulatedRunner(machine, 2 * SLOW_MS)
    watch = our_watch(*runners, on_cpu=True, clock=lambda: machine.now_ms / 1e3)
    rule = StopRule(half_width=0.0, budget_s=3.0)
    began = machine.now_ms
    watch.measure(rule)
    pilot_s = 2 * SLOW_PILOT_CALLS * 2 * SLOW_MS / 1e3
    assert (machine.now_ms - began) / 1e3 == pytest.approx(pilot_s + rule.budget_s, abs=1.5)
