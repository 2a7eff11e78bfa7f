"""Cores rest before a short model's half on a CPU, and so does the candidate, simulated."""

import pytest

pytest.importorskip("torch")

from exploits.simulated_machine import Machine, SimulatedRunner, our_watch

from pike_hpc.evaluate.judge_plan import SLOW_MS
from pike_hpc.evaluate.judge_timing import CORES_REST_S, MAX_BUSY, WATCHED_S, Busy
from pike_hpc.evaluate.statistics import StopRule

FIVE_BLOCKS = StopRule(half_width=0.0, budget_s=0.0)
SHORT_MS = 1.0


class Used(SimulatedRunner):
    """Tells the CPU time that a test says it has used."""

    used_s = 0.0

    def cpu_s(self) -> float:
        return self.used_s


def rests(ms, *, on_cpu=True, works=0.0, rule=FIVE_BLOCKS):
    """Each rest of a timing, in which the candidate keeps so many cores busy."""
    machine = Machine(lambda now: 1.0, 5, noise=0.001)
    reference, candidate = Used(machine, ms), Used(machine, ms)
    rested = []

    def sleep(seconds: float) -> None:
        rested.append(seconds)
        candidate.used_s += works * seconds

    our_watch(reference, candidate, on_cpu=on_cpu, sleep=sleep).measure(rule)
    return rested


def test_cores_rest_before_either_half_of_a_short_model_on_a_cpu():
    rested = rests(SHORT_MS)
    assert set(rested) == {CORES_REST_S}
    assert len(rested) >= 10
    assert len(rested) % 2 == 0


@pytest.mark.parametrize("elsewhere", [{"ms": 2 * SLOW_MS}, {"ms": SHORT_MS, "on_cpu": False}])
def test_nobody_waits_for_slow_models_or_on_a_gpu(elsewhere):
    assert rests(**elsewhere) == []


def test_who_works_while_cores_rest_is_found_out():
    assert 5 * CORES_REST_S >= WATCHED_S, "five blocks must be enough to tell"
    with pytest.raises(Busy, match="before its calls"):
        rests(SHORT_MS, works=2 * MAX_BUSY)
    assert rests(SHORT_MS, works=MAX_BUSY / 2)
