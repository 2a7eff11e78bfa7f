"""A look at a GPU: what is read, and that nothing breaks where something can't be."""

import pytest

from pike_hpc.evaluate.nvml import Gpu, NvmlError, Sample, named
from pike_hpc.evaluate.nvml_simulated import UUID, Sensors, SimulatedNvml


def test_a_look_shows_the_sensors():
    machine = SimulatedNvml(
        Sensors(sm_mhz=1410, reasons=0x44, temperature_c=71, power_w=412.25, computing=(7, 9),
                drawing=(9, 11))
    )  # fmt: skip
    assert machine.gpu().sample() == Sample(
        sm_mhz=1410,
        reasons=0x44,
        temperature_c=71,
        power_w=412.25,
        processes=frozenset({7, 9, 11}),
    )


def test_the_clock_is_read_before_all_else():
    machine = SimulatedNvml()
    gpu = machine.gpu()
    machine.calls.clear()
    gpu.sample()
    assert machine.calls[0] == "nvmlDeviceGetClockInfo"


@pytest.mark.parametrize(
    ("symbol", "field"),
    [
        ("nvmlDeviceGetClockInfo", "sm_mhz"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "reasons"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ],
)
def test_what_a_gpu_does_not_tell_is_unread_and_the_rest_is_read(symbol, field):
    look = SimulatedNvml(fails={symbol: 3}).gpu().sample()
    assert getattr(look, field) is None
    others = {"sm_mhz", "reasons", "temperature_c", "power_w", "processes"} - {field}
    assert all(getattr(look, other) is not None for other in others)


def test_an_older_library_is_asked_by_its_older_names():
    machine = SimulatedNvml(
        Sensors(reasons=0x8, computing=(5,)),
        lacks=(
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v2",
        ),
    )
    look = machine.gpu().sample()
    assert (look.reasons, look.processes) == (0x8, frozenset({5}))


def test_a_long_list_of_processes_is_read_whole_and_an_endless_one_is_unread():
    machine = SimulatedNvml(Sensors(computing=tuple(range(1, 301))))
    gpu = machine.gpu()
    assert gpu.sample().processes == frozenset(range(1, 301))
    machine.sensors.computing = tuple(range(1, 5001))
    assert gpu.sample().processes is None


def test_a_machine_without_nvml_says_so():
    with pytest.raises(NvmlError, match="nvmlInit_v2 is missing"):
        Gpu(object(), UUID)
    with pytest.raises(NvmlError, match="nvmlInit_v2 returned 9"):
        SimulatedNvml(fails={"nvmlInit_v2": 9}).gpu()


def test_reasons_have_names():
    assert named(0) == ()
    assert named(0x1) == ()
    assert named(0x4 | 0x40 | 0x80) == ("sw_power_cap", "hw_thermal", "hw_power_brake")
