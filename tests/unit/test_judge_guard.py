"""The guards of a judge: one watch a task, and no drift where nothing is read."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_guard import Guards  # noqa: E402
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_task_s_usual_is_its_own():
    guards = Guards(SimulatedNvml().gpu().sample)
    assert not any(guards.task("a").drifted(ms) for ms in (10.0, 10.0, 10.0))
    assert guards.task("a").drifted(11.0)
    assert not guards.task("b").drifted(11.0)


def test_a_cpu_is_neither_read_nor_does_it_drift():
    guards = Guards.of(torch.device("cpu"))
    assert guards.why_not
    assert not any(guards.task("a").drifted(ms) for ms in (10.0, 10.0, 10.0, 20.0))
    guard = guards.task("a").guard()
    guard.before()
    assert guard.after(reference_last=True)
    assert guard.clocks() is None


def test_a_guard_reads_the_sensors():
    machine = SimulatedNvml(Sensors(sm_mhz=1755, temperature_c=66))
    guard = Guards(machine.gpu().sample).task("a").guard()
    guard.before()
    machine.sensors.reasons = 0x80
    assert not guard.after(reference_last=False)
    assert guard.clocks().sm_mhz == 1755
    assert guard.clocks().slowdowns == ("hw_power_brake",)
