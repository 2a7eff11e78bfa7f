"""GPU memory that two processes share: made in one, sent as a file descriptor, mapped in the other.

The descriptor crosses user, PID, network and IPC namespaces; handles of legacy CUDA IPC don't.

Who holds what. The memory lives as long as anything refers to it: a mapping or an open descriptor
of any process, one that waits in a socket included. The driver's own handle is released as soon as
the memory is mapped. The kernel closes the descriptors and unmaps for a process that dies, however
it dies, so: an importer killed leaves the exporter's memory whole and nothing behind; an exporter
killed leaves the memory to its importers until the last of them lets go.

Read-only is the importer's own choice. Access belongs to a mapping, is kept by the GPU's page
tables of the process that mapped, and that process can set it again; `cuMemExportToShareableHandle`
has no flags to export less. A write through a read-only mapping is an error that ends that
process's context and reaches no one else. It protects an honest program from itself, never a judge
from a candidate.

A write is certain to be seen by the other process only by work that it starts after the writing
work ended: synchronise, then ring.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from types import TracebackType

import torch

from .cuda_driver import (
    DESCRIPTOR,
    ON_DEVICE,
    POSIX_DESCRIPTORS,
    READ,
    READ_WRITE,
    RECOMMENDED,
    VIRTUAL_MEMORY,
    Access,
    DeviceMemoryError,
    Driver,
    Location,
    shareable,
)

_NEEDED = {
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": VIRTUAL_MEMORY,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": POSIX_DESCRIPTORS,
}


class _Mapping:
    """A mapped range as torch wants to see it. Tensors keep it alive, it keeps the range mapped."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            # torch refuses what says that it is read-only; the mapping says it to the GPU.
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class DeviceBuffer:
    """Bytes of a GPU, mapped here. Made by `export` and `import_`."""

    def __init__(
        self,
        driver: Driver,
        mapping: _Mapping,
        undo: contextlib.ExitStack,
        *,
        fd: int,
        size_bytes: int,
        device_index: int,
        writable: bool,
    ) -> None:
        self.fd = fd
        """To send to another process; -1 where imported or closed. Not inherited by children."""
        self.size_bytes = size_bytes
        """As asked for; what is mapped is rounded up to the GPU's granularity (2 MiB)."""
        self.device_index = device_index
        self.writable = writable
        self._view = driver.view
        self._mapping: _Mapping | None = mapping
        self._failures: list[DeviceMemoryError] = []
        end = weakref.finalize(mapping, _let_go, undo, self._failures)
        end.atexit = False  # the process's end frees all of it

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def bytes(self) -> torch.Tensor:
        """All of it as uint8. Raises DeviceMemoryError once closed."""
        if self._mapping is None:
            raise DeviceMemoryError("this buffer is closed")
        return self._view(self._mapping, self.device_index)[: self.size_bytes]

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], offset: int = 0) -> torch.Tensor:
        """A tensor over these bytes, contiguous.

        Args:
            dtype: any.
            shape: of the tensor; a side may be 0.
            offset: bytes from the start, a multiple of the dtype's size.

        Raises:
            DeviceMemoryError: it does not lie within the buffer, or that is closed.
        """
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or offset < 0 or offset + size > self.size_bytes:
            raise DeviceMemoryError(
                f"{dtype} {tuple(shape)} at byte {offset} is not within {self.size_bytes} bytes"
            )
        if offset % dtype.itemsize:
            raise DeviceMemoryError(f"byte {offset} is no multiple of {dtype}'s {dtype.itemsize}")
        return self.bytes()[offset : offset + size].view(dtype).view(tuple(shape))

    def close(self) -> None:
        """Let go of descriptor and memory. Can be called again.

        The memory stays mapped until the last tensor over it is gone: unmapped earlier, using one
        would end this process's context. Waits for the device.

        Raises:
            DeviceMemoryError: the driver refused a step; all others are done all the same.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._mapping = None
        if self._failures:
            raise self._failures.pop()


def export(size_bytes: int, device_index: int, *, driver: Driver | None = None) -> DeviceBuffer:
    """New memory, zeroed, mapped here for reading and writing, with a descriptor to send.

    Zeroed because pages of this process's own past could hold what a candidate must not see.

    Args:
        size_bytes: more than 0.
        device_index: as in torch's `cuda:0`.
        driver: None for this machine's.

    Raises:
        DeviceMemoryError: `result` is CUDA_ERROR_OUT_OF_MEMORY where the GPU is full.
    """
    driver = driver or Driver.open()
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as unsent:
        device, context, granularity = _start(driver, undo, size_bytes, device_index)
        length = -(-size_bytes // granularity) * granularity
        handle, fd = c_uint64(), c_int(-1)
        create = (byref(handle), length, byref(shareable(device)), 0)
        driver.within(context, "cuMemCreate", *create)
        with _released(driver, context, handle):
            address = _map(driver, undo, context, device, handle, length, granularity, READ_WRITE)
            driver.within(context, "cuMemsetD8_v2", address, 0, length)
            driver.within(context, "cuCtxSynchronize")
            shared = (byref(fd), handle, DESCRIPTOR, 0)
            driver.within(context, "cuMemExportToShareableHandle", *shared)
            unsent.callback(os.close, fd.value)
        unsent.pop_all()
        os.set_inheritable(fd.value, False)
        return DeviceBuffer(
            driver,
            _Mapping(address, length),
            undo.pop_all(),
            fd=fd.value,
            size_bytes=size_bytes,
            device_index=device_index,
            writable=True,
        )


def import_(
    fd: int, size_bytes: int, device_index: int, *, writable: bool, driver: Driver | None = None
) -> DeviceBuffer:
    """Memory that another process exported, mapped here.

    Args:
        fd: the descriptor, taken over: closed here, whether this succeeds or not.
        size_bytes: what was exported.
        device_index: of the same GPU, as this process numbers them.
        writable: False for a mapping that this process can't write through.
        driver: None for this machine's.

    Raises:
        DeviceMemoryError: the descriptor is no GPU memory, or of another size.
    """
    with contextlib.ExitStack() as undo, _closed(fd):
        driver = driver or Driver.open()
        device, context, granularity = _start(driver, undo, size_bytes, device_index)
        length = -(-size_bytes // granularity) * granularity
        handle = c_uint64()
        driver.within(
            context, "cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), DESCRIPTOR
        )
        access = READ_WRITE if writable else READ
        with _released(driver, context, handle):
            address = _map(driver, undo, context, device, handle, length, granularity, access)
        return DeviceBuffer(
            driver,
            _Mapping(address, length),
            undo.pop_all(),
            fd=-1,
            size_bytes=size_bytes,
            device_index=device_index,
            writable=writable,
        )


def supported(device_index: int, *, driver: Driver | None = None) -> str:
    """Empty where memory of this GPU can be shared, else why not. Makes no context."""
    try:
        if driver is None:
            if torch.version.cuda is None:
                return f"torch {torch.__version__} was built without CUDA"
            driver = Driver.open()
        device = driver.device(device_index)
        missing = [n for n, number in _NEEDED.items() if not driver.attribute(device, number)]
    except DeviceMemoryError as error:
        return str(error)
    if missing:
        return f"GPU {device_index} or its driver lacks {', '.join(missing)}"
    return ""


def _start(
    driver: Driver, undo: contextlib.ExitStack, size_bytes: int, device_index: int
) -> tuple[int, int, int]:
    """The device, its primary context, kept until `undo` closes, and the granularity."""
    if size_bytes <= 0:
        raise DeviceMemoryError(f"a buffer of {size_bytes} bytes can't be shared")
    device = driver.device(device_index)
    context = driver.retain(device)
    undo.callback(driver.release, device)
    found = c_size_t()
    what = (byref(found), byref(shareable(device)), RECOMMENDED)
    driver.within(context, "cuMemGetAllocationGranularity", *what)
    return device, context, found.value


@contextlib.contextmanager
def _closed(fd: int) -> Iterator[None]:
    """Close a descriptor after the block. The driver has said it, if it was none."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


@contextlib.contextmanager
def _released(driver: Driver, context: int, handle: c_uint64) -> Iterator[None]:
    """Release a handle after the block; what is mapped stays."""
    try:
        yield
    finally:
        driver.within(context, "cuMemRelease", handle)


def _map(
    driver: Driver,
    undo: contextlib.ExitStack,
    context: int,
    device: int,
    handle: c_uint64,
    length: int,
    granularity: int,
    access: int,
) -> int:
    """The address where memory now lies; `undo` takes it away again."""
    place = c_uint64()
    driver.within(context, "cuMemAddressReserve", byref(place), length, granularity, 0, 0)
    address = place.value
    undo.callback(driver.within, context, "cuMemAddressFree", address, length)
    driver.within(context, "cuMemMap", address, length, 0, handle, 0)
    undo.callback(driver.within, context, "cuMemUnmap", address, length)
    undo.callback(driver.within, context, "cuCtxSynchronize")
    rights = Access(location=Location(kind=ON_DEVICE, device=device), flags=access)
    driver.within(context, "cuMemSetAccess", address, length, byref(rights), 1)
    return address


def _let_go(undo: contextlib.ExitStack, failures: list[DeviceMemoryError]) -> None:
    """Undo the mapping. A failure is kept, not raised: this may run where a tensor is freed."""
    try:
        undo.close()
    except DeviceMemoryError as error:
        failures.append(error)
