"""Cores rest before a short model's half on a CPU, simulated."""

import pytest

pytest.importorskip("torch")

from exploits.simulated_machine import Machine, SimulatedRunner, our_watch

from pike_hpc.evaluate.judge_plan import SLOW_MS
from pike_hpc.evaluate.judge_timing import CORES_REST_S
from pike_hpc.evaluate.statistics import StopRule

FIVE_BLOCKS = StopRule(half_width=0.0, budget_s=0.0)
SHORT_MS = 1.0


def rests(ms, *, on_cpu=True):
    """Each rest of a timing of five blocks."""
    machine = Machine(lambda now: 1.0, 5, noise=0.001)
    runners = SimulatedRunner(machine, ms), SimulatedRunner(machine, ms)
    rested: list[float] = []
    our_watch(*runners, on_cpu=on_cpu, sleep=rested.append).measure(FIVE_BLOCKS)
    return rested


def test_cores_rest_before_either_half_of_a_short_model_on_a_cpu():
    rested = rests(SHORT_MS)
    assert set(rested) == {CORES_REST_S}
    assert len(rested) >= 10
    assert len(rested) % 2 == 0


@pytest.mark.parametrize("elsewhere", [{"ms": 2 * SLOW_MS}, {"ms": SHORT_MS, "on_cpu": False}])
def test_nobody_waits_for_slow_models_or_on_a_gpu(elsewhere):
    assert rests(**elsewhere) == []
