"""What the driver promises of shared memory, of the real one and of the one in host memory."""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest
from builders.cuda import torch_sees_it

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner.cuda_driver import (  # noqa: E402
    DESCRIPTOR,
    ON_DEVICE,
    READ_WRITE,
    RECOMMENDED,
    STACK_SIZE,
    Access,
    DeviceMemoryError,
    Driver,
    Location,
    shareable,
)
from pike_hpc.evaluate.runner.simulated_driver import SimulatedDriver  # noqa: E402

pytestmark = pytest.mark.torch


class Bench:
    """The calls in their shortest form, in the primary context of the first GPU."""

    def __init__(self, driver):
        self.driver = driver
        self.device = driver.device(0)
        self.context = driver.retain(self.device)
        found = c_size_t()
        self("cuMemGetAllocationGranularity", byref(found), byref(self.kind()), RECOMMENDED)
        self.unit = found.value
        self.undo = [(driver.release, self.device)]

    def __call__(self, name, *arguments):
        self.driver.within(self.context, name, *arguments)

    def kind(self, handle_types=DESCRIPTOR):
        kind = shareable(self.device)
        kind.handle_types = handle_types
        return kind

    def create(self, size, **kind):
        handle = c_uint64()
        self("cuMemCreate", byref(handle), size, byref(self.kind(**kind)), 0)
        self.undo.append((self, "cuMemRelease", handle))
        return handle

    def reserve(self, size):
        at = c_uint64()
        self("cuMemAddressReserve", byref(at), size, self.unit, 0, 0)
        self.undo.append((self, "cuMemAddressFree", at.value, size))
        return at.value

    def map(self, at, size, handle, access=READ_WRITE):
        self("cuMemMap", at, size, 0, handle, 0)
        self.undo.append((self, "cuMemUnmap", at, size))
        self.allow(at, size, access)

    def allow(self, at, size, access):
        rights = Access(location=Location(kind=ON_DEVICE, device=self.device), flags=access)
        self("cuMemSetAccess", at, size, byref(rights), 1)

    def descriptor(self, handle, flags=0):
        fd = c_int(-1)
        self("cuMemExportToShareableHandle", byref(fd), handle, DESCRIPTOR, flags)
        self.undo.append((os.close, fd.value))
        return fd.value

    def take(self, fd):
        handle = c_uint64()
        self("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), DESCRIPTOR)
        self.undo.append((self, "cuMemRelease", handle))
        return handle

    def bytes(self, at, size):
        class Owner:
            pass

        owner = Owner()
        owner.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (at, False),
            "strides": None,
            "version": 2,
        }
        return self.driver.view(owner, 0)

    def forget(self, step):
        """Do the newest undoing of this call now."""
        which = max(n for n, (_, *args) in enumerate(self.undo) if args[:1] == [step])
        call, *arguments = self.undo.pop(which)
        call(*arguments)

    def close(self):
        self("cuCtxSynchronize")
        while self.undo:
            call, *arguments = self.undo.pop()
            call(*arguments)


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def bench(request):
    if request.param == "simulated":
        machine = SimulatedDriver()
        driver = machine.driver()
    else:
        torch_sees_it()
        driver = Driver.open()
    made = Bench(driver)
    yield made
    made.close()
    if request.param == "simulated":
        assert machine.outstanding() == 0


strict = pytest.mark.parametrize("bench", ["simulated"], indirect=True)
"""What cuda.h asks of callers and driver 580 lets pass: the simulated one refuses it."""


def refused(*names):
    results = "|".join(f"CUDA_ERROR_{name}" for name in names)
    return pytest.raises(DeviceMemoryError, match=results)


def test_stacks_have_a_limit_and_what_is_none_is_refused(bench):
    bench("cuCtxSetLimit", STACK_SIZE, 256)
    with refused("INVALID_VALUE", "UNSUPPORTED_LIMIT"):
        bench("cuCtxSetLimit", 99, 256)


def test_granularity_is_a_power_of_two_of_pages(bench):
    assert bench.unit >= 4096
    assert bench.unit & (bench.unit - 1) == 0


@pytest.mark.parametrize("wrong", [1, -1])
def test_a_size_that_is_no_multiple_of_it_is_refused(bench, wrong):
    with refused("INVALID_VALUE"):
        bench.create(bench.unit + wrong)


def test_flags_that_must_be_zero_must_be_zero(bench):
    handle = bench.create(bench.unit)
    at = bench.reserve(bench.unit)
    with refused("INVALID_VALUE"):
        bench("cuMemCreate", byref(c_uint64()), bench.unit, byref(bench.kind()), 1)
    with refused("INVALID_VALUE"):
        bench("cuMemMap", at, bench.unit, 0, handle, 1)
    with refused("INVALID_VALUE"):
        bench.descriptor(handle, flags=1)


def test_addresses_are_aligned_as_asked(bench):
    assert bench.reserve(3 * bench.unit) % bench.unit == 0


def test_mapped_memory_holds_what_was_set(bench):
    at = bench.reserve(bench.unit)
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench("cuMemsetD8_v2", at, 0x5A, bench.unit)
    bench("cuCtxSynchronize")
    assert bool((bench.bytes(at, bench.unit) == 0x5A).all())


def test_what_is_mapped_cannot_be_mapped_over(bench):
    at, handle = bench.reserve(bench.unit), bench.create(bench.unit)
    bench.map(at, bench.unit, handle)
    with refused("INVALID_VALUE", "ALREADY_MAPPED"):
        bench("cuMemMap", at, bench.unit, 0, handle, 0)


def test_addresses_that_are_not_reserved_cannot_be_mapped(bench):
    with refused("INVALID_VALUE"):
        bench("cuMemMap", 7 * bench.unit, bench.unit, 0, bench.create(bench.unit), 0)


@strict
def test_more_than_there_is_cannot_be_mapped(bench):
    at = bench.reserve(2 * bench.unit)
    with refused("INVALID_VALUE"):
        bench("cuMemMap", at, 2 * bench.unit, 0, bench.create(bench.unit), 0)


@strict
def test_an_offset_is_refused(bench):
    at = bench.reserve(bench.unit)
    with refused("INVALID_VALUE"):
        bench("cuMemMap", at, bench.unit, bench.unit, bench.create(2 * bench.unit), 0)


def test_access_is_given_to_what_is_mapped_alone(bench):
    at = bench.reserve(bench.unit)
    with refused("INVALID_VALUE"):
        bench.allow(at, bench.unit, READ_WRITE)


@strict
def test_unmapping_twice_is_refused(bench):
    at = bench.reserve(bench.unit)
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench("cuCtxSynchronize")
    bench.forget("cuMemUnmap")
    with refused("INVALID_VALUE"):
        bench("cuMemUnmap", at, bench.unit)


def test_addresses_can_be_mapped_again_after_unmapping(bench):
    at = bench.reserve(bench.unit)
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench("cuMemsetD8_v2", at, 1, bench.unit)
    bench("cuCtxSynchronize")
    bench.forget("cuMemUnmap")
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench("cuMemsetD8_v2", at, 2, bench.unit)
    bench("cuCtxSynchronize")
    assert bench.bytes(at, 1).tolist() == [2]


def test_a_released_handle_leaves_its_mapping(bench):
    at = bench.reserve(bench.unit)
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench.forget("cuMemRelease")
    bench("cuMemsetD8_v2", at, 9, bench.unit)
    bench("cuCtxSynchronize")
    assert bench.bytes(at, 2).tolist() == [9, 9]


def test_a_descriptor_keeps_memory_whose_handle_is_released_and_which_nobody_maps(bench):
    at = bench.reserve(bench.unit)
    bench.map(at, bench.unit, bench.create(bench.unit))
    bench("cuMemsetD8_v2", at, 0x77, bench.unit)
    bench("cuCtxSynchronize")
    (handle,) = [args[1] for _, *args in bench.undo if args[:1] == ["cuMemRelease"]]
    fd = bench.descriptor(handle)
    bench.forget("cuMemUnmap")
    bench.forget("cuMemRelease")
    bench.map(at, bench.unit, bench.take(fd))
    assert bench.bytes(at, 2).tolist() == [0x77, 0x77]


def test_two_addresses_of_one_memory_agree(bench):
    one, two = bench.reserve(bench.unit), bench.reserve(bench.unit)
    handle = bench.create(bench.unit)
    bench.map(one, bench.unit, handle)
    bench.map(two, bench.unit, bench.take(bench.descriptor(handle)))
    bench("cuMemsetD8_v2", one, 0x31, bench.unit)
    bench("cuCtxSynchronize")
    assert bench.bytes(two, 3).tolist() == [0x31] * 3


def test_memory_that_was_not_made_to_be_shared_cannot_be(bench):
    handle = bench.create(bench.unit, handle_types=0)
    with refused("INVALID_VALUE", "NOT_SUPPORTED", "NOT_PERMITTED", "INVALID_HANDLE"):
        bench.descriptor(handle)


def test_a_descriptor_of_something_else_is_refused(bench):
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        with pytest.raises(DeviceMemoryError, match="cuMemImportFromShareableHandle: CUDA_ERROR_"):
            bench.take(fd)
    finally:
        os.close(fd)


def test_addresses_are_given_back_as_they_were_reserved(bench):
    at = bench.reserve(2 * bench.unit)
    with refused("INVALID_VALUE"):
        bench("cuMemAddressFree", at, bench.unit)


def test_a_context_pushed_is_the_one_popped(bench):
    before = bench.driver.current()
    bench.driver.call("cuCtxPushCurrent_v2", bench.context)
    assert bench.driver.current() == bench.context
    popped = c_void_p()
    bench.driver.call("cuCtxPopCurrent_v2", byref(popped))
    assert popped.value == bench.context
    assert bench.driver.current() == before


def test_the_descriptor_is_written_as_an_int_and_no_more(bench):
    place = (ctypes.c_int32 * 2)(-1, -1)
    handle = bench.create(bench.unit)
    bench("cuMemExportToShareableHandle", byref(place), handle, DESCRIPTOR, 0)
    os.close(place[0])
    assert place[1] == -1
