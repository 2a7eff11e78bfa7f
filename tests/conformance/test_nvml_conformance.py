"""What NVML promises, of the real one and of the simulated one."""

import ctypes
import subprocess
from ctypes import byref, c_uint, c_void_p

import pytest
from builders.required import lacking

from pike_hpc.evaluate.nvml import (
    CALLS,
    LIBRARY,
    SUCCESS,
    TOO_SMALL,
    Gpu,
    NvmlError,
    Process,
)
from pike_hpc.evaluate.nvml_simulated import UUID, Sensors, SimulatedNvml


def real():
    """The library of this machine and the UUID of its first GPU."""
    try:
        library = ctypes.CDLL(LIBRARY)
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        lacking("cuda", f"no NVML here: {error}")
    return library, listed.stdout.split()[0]


@pytest.fixture(params=["simulated", pytest.param("nvidia", marks=pytest.mark.gpu)])
def machine(request):
    if request.param == "simulated":
        return SimulatedNvml(Sensors(computing=(4242,), power_w=123.5)), UUID
    return real()


def handle_of(library, uuid):
    """As C would: started, and the GPU found."""
    Gpu(library, uuid)
    handle = c_void_p()
    assert library.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(handle)) == SUCCESS
    return handle


def test_every_call_is_there_under_one_of_its_names(machine):
    library, _ = machine
    for symbols, _ in CALLS.values():
        assert any(hasattr(library, symbol) for symbol in symbols)


def test_a_gpu_is_found_by_its_uuid_and_another_is_not(machine):
    library, uuid = machine
    Gpu(library, uuid)
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetHandleByUUID returned [26]"):
        Gpu(library, "GPU-ffffffff-ffff-4fff-bfff-ffffffffffff")


def test_starting_twice_is_allowed(machine):
    library, uuid = machine
    gpus = [Gpu(library, uuid), Gpu(library, uuid)]
    assert all(gpu.sample().sm_mhz for gpu in gpus)


def test_a_look_tells_values_that_gpus_have(machine):
    library, uuid = machine
    look = Gpu(library, uuid).sample()
    assert 100 <= look.sm_mhz <= 4000
    assert look.reasons >= 0
    assert 5 <= look.temperature_c <= 120
    assert look.power_w is None or 5 < look.power_w < 2000
    assert look.processes is not None


def test_a_list_that_does_not_fit_says_how_long_it_is(machine):
    library, uuid = machine
    handle = handle_of(library, uuid)
    call = library.nvmlDeviceGetComputeRunningProcesses_v3
    count = c_uint(0)
    code = call(handle, byref(count), (Process * 1)())
    assert (code, count.value) == (SUCCESS, 0) or (code == TOO_SMALL and count.value > 0)


def test_an_unknown_clock_is_refused(machine):
    library, uuid = machine
    value = c_uint()
    assert library.nvmlDeviceGetClockInfo(handle_of(library, uuid), 99, byref(value)) != SUCCESS
