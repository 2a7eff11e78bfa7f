"""The CUDA driver by ctypes: the few calls that share GPU memory, or save it, as CUDA 13 has them.

Works in the primary context of a device, the one that torch uses, and leaves the thread's current
context as it found it. Every failure is one `DeviceMemoryError` with the CUresult's name. Knows no
buffers. The library is an argument: libcuda, or `simulated_driver`, which follows its rules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Any

import torch

LIBRARY = "libcuda.so.1"

VIRTUAL_MEMORY, POSIX_DESCRIPTORS = 102, 103
"""CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, …_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_…"""

DESCRIPTOR = 1
"""CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR."""

PINNED, ON_DEVICE = 1, 1
"""CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE."""

RECOMMENDED = 1
"""CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, a multiple of the least one."""

READ, READ_WRITE = 1, 3
"""CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""

STACK_SIZE = 0
"""CU_LIMIT_STACK_SIZE."""

View = Callable[[Any, int], torch.Tensor]
"""A uint8 tensor over what has `__cuda_array_interface__`, on a device; it keeps that alive."""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("kind", c_int), ("device", c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", c_ubyte),
        ("gpu_direct", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp, 32 bytes."""

    _fields_ = (
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("flags", _AllocationFlags),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc, 12 bytes."""

    _fields_ = (("location", Location), ("flags", c_int))


CALLS: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuCtxSynchronize": (),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProperties), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(Access), c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
}
"""Argument types by symbol; each returns a CUresult. Out values come through pointers."""


class DeviceMemoryError(RuntimeError):
    """GPU memory can't be had, shared or looked at as asked; the message says why."""

    def __init__(self, what: str, *, call: str = "", result: str = "") -> None:
        super().__init__(what)
        self.call = call
        """The driver's call that failed; empty where none was made."""
        self.result = result
        """The CUresult's name, such as CUDA_ERROR_OUT_OF_MEMORY; empty likewise."""


def cuda_view(owner: Any, device_index: int) -> torch.Tensor:
    """The `View` of GPU memory."""
    return torch.as_tensor(owner, device=torch.device("cuda", device_index))


class Driver:
    """libcuda with its results checked."""

    def __init__(self, library: Any, view: View = cuda_view) -> None:
        """Bind the calls and initialise the driver.

        Args:
            library: what has the functions of CALLS as attributes, by C's calling convention.
            view: makes tensors over mapped memory.

        Raises:
            DeviceMemoryError: a call is missing, or there is no GPU that may be used.
        """
        self.view = view
        self._calls: dict[str, Any] = {}
        for name, arguments in CALLS.items():
            try:
                found = getattr(library, name)
            except AttributeError:
                raise DeviceMemoryError(f"the NVIDIA driver is too old: no {name}") from None
            found.argtypes, found.restype = arguments, c_int
            self._calls[name] = found
        self.call("cuInit", 0)

    @classmethod
    def open(cls) -> Driver:
        """The driver of this machine. Raises DeviceMemoryError where there is none."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DeviceMemoryError(f"no NVIDIA driver here: {error}") from None
        return cls(library)

    def call(self, name: str, *arguments: Any) -> None:
        """Call `name`. Raises DeviceMemoryError unless it succeeds."""
        code = self._calls[name](*arguments)
        if code:
            result = self._name(code)
            raise DeviceMemoryError(f"{name}: {result} ({code})", call=name, result=result)

    def within(self, context: int, name: str, *arguments: Any) -> None:
        """Call `name` with `context` current. Raises DeviceMemoryError."""
        self.call("cuCtxPushCurrent_v2", context)
        try:
            self.call(name, *arguments)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))

    def device(self, index: int) -> int:
        """The CUdevice of torch's `cuda:index`. Raises DeviceMemoryError."""
        found = c_int()
        self.call("cuDeviceGet", ctypes.byref(found), index)
        return found.value

    def attribute(self, device: int, which: int) -> int:
        """A CUdevice_attribute. Raises DeviceMemoryError."""
        found = c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(found), which, device)
        return found.value

    def retain(self, device: int) -> int:
        """The primary context, kept until `release`. Raises DeviceMemoryError."""
        found = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
        return found.value or 0

    def release(self, device: int) -> None:
        """Let go of the primary context once. Raises DeviceMemoryError."""
        self.call("cuDevicePrimaryCtxRelease_v2", device)

    def current(self) -> int:
        """The thread's current context, 0 for none. Raises DeviceMemoryError."""
        found = c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    def _name(self, code: int) -> str:
        text = c_char_p()
        unknown = self._calls["cuGetErrorName"](code, ctypes.byref(text)) or not text.value
        return f"CUresult {code}" if unknown else text.value.decode()  # type: ignore[union-attr]


def shareable(device: int) -> AllocationProperties:
    """What describes memory of a device that can leave the process as a descriptor."""
    return AllocationProperties(
        kind=PINNED, handle_types=DESCRIPTOR, location=Location(kind=ON_DEVICE, device=device)
    )
