"""Shared GPU memory against a driver in host memory: what is asked of it, in what order, and what
is left when it refuses."""

import ctypes
import gc
import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.layout import ITEM_BYTES  # noqa: E402
from pike_hpc.evaluate.runner import device_memory  # noqa: E402
from pike_hpc.evaluate.runner.cuda_driver import (  # noqa: E402
    CALLS,
    POSIX_DESCRIPTORS,
    VIRTUAL_MEMORY,
    Access,
    AllocationProperties,
    DeviceMemoryError,
    Driver,
)
from pike_hpc.evaluate.runner.simulated_driver import (  # noqa: E402
    GRANULARITY,
    SimulatedDriver,
    host_view,
)

pytestmark = pytest.mark.torch

DTYPES = sorted(ITEM_BYTES)
STEPS = [
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_structures_lie_as_in_cuda_h():
    """Sizes and offsets as a C compiler gives them for CUDA 13's header, on x86-64 and aarch64."""
    fields = AllocationProperties
    offsets = [f.offset for f in (fields.kind, fields.handle_types, fields.location)]
    assert [*offsets, fields.windows.offset, fields.flags.offset] == [0, 4, 8, 16, 24]
    assert ctypes.sizeof(AllocationProperties) == 32
    assert (ctypes.sizeof(Access), Access.flags.offset) == (12, 8)


def test_what_one_side_writes_the_other_reads():
    machine = SimulatedDriver()
    driver = machine.driver()
    with device_memory.export(1000, 0, driver=driver) as ours:
        fd = os.dup(ours.fd)
        with device_memory.import_(fd, 1000, 0, writable=True, driver=driver) as theirs:
            ours.tensor(torch.float32, (4,), 16).fill_(1.5)
            assert theirs.tensor(torch.float32, (4,), 16).tolist() == [1.5] * 4
            theirs.tensor(torch.float32, (2,), 16).zero_()
            assert ours.tensor(torch.float32, (4,), 16).tolist() == [0, 0, 1.5, 1.5]
            assert ours.bytes().shape == theirs.bytes().shape == (1000,)
            assert (theirs.writable, theirs.fd, theirs.size_bytes) == (True, -1, 1000)
        assert not is_open(fd)
    assert machine.outstanding() == 0


def test_new_memory_holds_zeros_and_its_descriptor_stays_in_this_process():
    with device_memory.export(3 * GRANULARITY, 0, driver=SimulatedDriver().driver()) as buffer:
        assert not buffer.bytes().any()
        assert not os.get_inheritable(buffer.fd)


def test_memory_is_zeroed_before_it_can_be_sent():
    machine = SimulatedDriver()
    with device_memory.export(10, 0, driver=machine.driver()):
        zeroed = machine.calls.index("cuMemsetD8_v2")
        assert zeroed < machine.calls.index("cuCtxSynchronize", zeroed)
        assert zeroed < machine.calls.index("cuMemExportToShareableHandle")


@pytest.mark.parametrize("size", [1, GRANULARITY - 1, GRANULARITY, GRANULARITY + 1])
def test_sizes_are_rounded_up_for_the_driver_alone(size):
    machine = SimulatedDriver()
    with device_memory.export(size, 0, driver=machine.driver()) as buffer:
        (mapped,) = machine.ranges.values()
        assert mapped.size % GRANULARITY == 0
        assert 0 <= mapped.size - size < GRANULARITY
        assert buffer.bytes().numel() == buffer.size_bytes == size
        assert os.fstat(buffer.fd).st_size == mapped.size


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_its_tensor(name):
    dtype = getattr(torch, name)
    with device_memory.export(4096, 0, driver=SimulatedDriver().driver()) as buffer:
        found = buffer.tensor(dtype, (3, 5), 256)
        assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, (3, 5), True)
        ones = torch.ones(3, 5, dtype=dtype)
        found.copy_(ones)
        assert torch.equal(found, ones)
        raw = buffer.bytes()
        end = 256 + ones.nbytes
        assert torch.equal(raw[256:end], ones.view(-1).view(torch.uint8))
        assert not raw[:256].any()
        assert not raw[end:].any()
        assert buffer.tensor(dtype, ()).shape == ()
        assert buffer.tensor(dtype, (0, 4), 4096).shape == (0, 4)
        del found, raw


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "said"),
    [
        (torch.float32, (25,), 4, "is not within 100 bytes"),
        (torch.uint8, (101,), 0, "is not within 100 bytes"),
        (torch.uint8, (1,), -1, "is not within 100 bytes"),
        (torch.uint8, (-1,), 8, "is not within 100 bytes"),
        (torch.complex64, (2,), 4, "byte 4 is no multiple of torch.complex64's 8"),
    ],
)
def test_a_tensor_beyond_the_buffer_is_refused(dtype, shape, offset, said):
    with (
        device_memory.export(100, 0, driver=SimulatedDriver().driver()) as buffer,
        pytest.raises(DeviceMemoryError, match=said),
    ):
        buffer.tensor(dtype, shape, offset)


def test_closing_twice_closes_once():
    machine = SimulatedDriver()
    before = descriptors()
    buffer = device_memory.export(10, 0, driver=machine.driver())
    fd = buffer.fd
    buffer.close()
    made = len(machine.calls)
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, fd)  # someone else has the number now
    buffer.close()
    assert is_open(fd)
    os.close(fd)
    if other != fd:
        os.close(other)
    assert len(machine.calls) == made
    assert (machine.outstanding(), descriptors()) == (0, before)
    with pytest.raises(DeviceMemoryError, match="closed"):
        buffer.bytes()


def test_a_tensor_outlives_its_buffer_and_then_all_is_let_go():
    machine = SimulatedDriver()
    buffer = device_memory.export(64, 0, driver=machine.driver())
    part = buffer.tensor(torch.int32, (4, 4))[1:, 2]
    fd = buffer.fd
    buffer.close()
    assert not is_open(fd)
    part.fill_(7)
    assert part.tolist() == [7, 7, 7]
    assert machine.outstanding() > 0
    del part
    assert machine.outstanding() == 0


def test_a_buffer_that_is_forgotten_lets_go_of_memory():
    machine = SimulatedDriver()
    os.close(device_memory.export(64, 0, driver=machine.driver()).fd)
    gc.collect()
    assert machine.outstanding() == 0


def test_the_threads_context_is_left_as_it_was():
    machine = SimulatedDriver(devices=2)
    driver = machine.driver()
    mine = driver.retain(0)
    driver.call("cuCtxPushCurrent_v2", mine)
    with device_memory.export(64, 1, driver=driver):
        assert driver.current() == mine
    assert driver.current() == mine
    assert machine.contexts == {0: 1, 1: 0}


@pytest.mark.parametrize(
    "step",
    [*STEPS, "cuMemCreate", "cuMemsetD8_v2", "cuCtxSynchronize", "cuMemExportToShareableHandle"],
)
def test_an_export_that_fails_leaves_nothing(step):
    machine = SimulatedDriver(fails={step: 2})
    before = descriptors()
    with pytest.raises(DeviceMemoryError, match=rf"{step}: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as said:
        device_memory.export(64, 0, driver=machine.driver())
    assert (said.value.call, said.value.result) == (step, "CUDA_ERROR_OUT_OF_MEMORY")
    assert (machine.outstanding(), descriptors()) == (0, before)


@pytest.mark.parametrize("step", [*STEPS, "cuMemImportFromShareableHandle"])
def test_an_import_that_fails_leaves_nothing_and_closes_the_descriptor(step):
    with device_memory.export(64, 0, driver=SimulatedDriver().driver()) as ours:
        machine = SimulatedDriver(fails={step: 700})
        before, fd = descriptors(), os.dup(ours.fd)
        with pytest.raises(DeviceMemoryError, match=f"{step}: CUDA_ERROR_ILLEGAL_ADDRESS"):
            device_memory.import_(fd, 64, 0, writable=True, driver=machine.driver())
        assert (machine.outstanding(), descriptors()) == (0, before)
        assert not is_open(fd)


def test_a_handle_that_is_not_released_costs_no_descriptor():
    machine = SimulatedDriver(fails={"cuMemRelease": 1})
    before = descriptors()
    with pytest.raises(DeviceMemoryError, match="cuMemRelease"):
        device_memory.export(64, 0, driver=machine.driver())
    assert descriptors() == before + 1, "the handle's own, which the driver kept"
    assert machine.ranges == {}
    os.close(machine.handles.popitem()[1])


def test_a_step_of_closing_that_fails_is_said_and_the_others_are_done():
    machine = SimulatedDriver()
    buffer = device_memory.export(64, 0, driver=machine.driver())
    machine.fails["cuCtxSynchronize"] = 700
    with pytest.raises(DeviceMemoryError, match="cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"):
        buffer.close()
    assert machine.outstanding() == 0
    buffer.close()


def test_what_is_no_gpu_memory_is_refused():
    driver = SimulatedDriver().driver()
    with pytest.raises(DeviceMemoryError, match="cuMemImportFromShareableHandle"):
        device_memory.import_(os.open(os.devnull, os.O_RDWR), 8, 0, writable=True, driver=driver)
    with pytest.raises(DeviceMemoryError, match="cuMemImportFromShareableHandle"):
        device_memory.import_(987654, 8, 0, writable=True, driver=driver)


def test_memory_smaller_than_said_is_refused():
    machine = SimulatedDriver()
    with device_memory.export(GRANULARITY, 0, driver=machine.driver()) as ours:
        held = machine.outstanding()
        with pytest.raises(DeviceMemoryError, match="cuMemMap: CUDA_ERROR_INVALID_VALUE"):
            device_memory.import_(
                os.dup(ours.fd), GRANULARITY + 1, 0, writable=True, driver=machine.driver()
            )
        assert machine.outstanding() == held


@pytest.mark.parametrize("size", [0, -1])
def test_nothing_cannot_be_shared(size):
    with pytest.raises(DeviceMemoryError, match=f"{size} bytes"):
        device_memory.export(size, 0, driver=SimulatedDriver().driver())


def test_a_full_gpu_is_told_by_name_and_serves_again():
    machine = SimulatedDriver(memory_bytes=4 * GRANULARITY)
    driver = machine.driver()
    with device_memory.export(3 * GRANULARITY, 0, driver=driver):
        with pytest.raises(DeviceMemoryError) as said:
            device_memory.export(2 * GRANULARITY, 0, driver=driver)
        assert said.value.result == "CUDA_ERROR_OUT_OF_MEMORY"
    device_memory.export(2 * GRANULARITY, 0, driver=driver).close()


def test_read_only_is_asked_of_the_driver():
    machine = SimulatedDriver()
    driver = machine.driver()
    with device_memory.export(8, 0, driver=driver) as ours:
        ours.bytes().fill_(3)
        fd = os.dup(ours.fd)
        with device_memory.import_(fd, 8, 0, writable=False, driver=driver) as theirs:
            assert theirs.bytes().tolist() == [3] * 8
            assert sorted(r.access for r in machine.ranges.values()) == [1, 3]
            assert not theirs.writable


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (SimulatedDriver(), ""),
        (SimulatedDriver(lacks=frozenset({VIRTUAL_MEMORY})), "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
        (
            SimulatedDriver(lacks=frozenset({POSIX_DESCRIPTORS})),
            "lacks HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        ),
        (SimulatedDriver(fails={"cuDeviceGetAttribute": 999}), r"CUresult 999 \(999\)"),
    ],
)
def test_what_is_missing_is_named(machine, said):
    found = device_memory.supported(0, driver=machine.driver())
    assert re.search(said, found) if said else found == ""
    assert machine.outstanding() == 0


def test_a_gpu_that_is_not_there_is_named():
    assert "CUDA_ERROR_INVALID_DEVICE" in device_memory.supported(
        1, driver=SimulatedDriver().driver()
    )
    with pytest.raises(DeviceMemoryError, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        SimulatedDriver(devices=0).driver()


def test_a_driver_without_these_calls_is_too_old():
    class Old:
        cuInit = SimulatedDriver().cuInit

    with pytest.raises(DeviceMemoryError, match="too old: no cuGetErrorName"):
        Driver(Old(), host_view)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch was built with CUDA")
def test_a_torch_without_cuda_is_named():
    assert "built without CUDA" in device_memory.supported(0)


def test_a_machine_without_a_driver_is_named():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(DeviceMemoryError, match="no NVIDIA driver here"):
            Driver.open()
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_the_simulated_driver_has_every_call():
    assert all(hasattr(SimulatedDriver(), name) for name in CALLS)
