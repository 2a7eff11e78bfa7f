"""A libcuda in host memory: the same calls, the same rules, descriptors that really travel.

For machines without a GPU. Memory is a memfd, an address range is a reservation of this process's
own address space, access is what mprotect says: an address that is not mapped or not accessible
can't be touched here either, and as a GPU's context ends there, the process ends here (SIGSEGV).
What cuda.h leaves undefined is refused, and every call on memory wants a current context. Knows
nothing of kernels: whoever has a tensor reads and writes at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, c_char_p, c_int, c_int32, c_long, c_size_t, c_uint8, c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from .cuda_driver import (
    CALLS,
    DESCRIPTOR,
    ON_DEVICE,
    PINNED,
    POSIX_DESCRIPTORS,
    READ,
    READ_WRITE,
    STACK_SIZE,
    VIRTUAL_MEMORY,
    Driver,
)

GRANULARITY = 2 << 20
"""Bytes. What every GPU so far answers."""

ERRORS: Mapping[int, bytes] = {
    1: b"CUDA_ERROR_INVALID_VALUE",
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    3: b"CUDA_ERROR_NOT_INITIALIZED",
    100: b"CUDA_ERROR_NO_DEVICE",
    101: b"CUDA_ERROR_INVALID_DEVICE",
    201: b"CUDA_ERROR_INVALID_CONTEXT",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    801: b"CUDA_ERROR_NOT_SUPPORTED",
}
INVALID, FULL, UNINITIALISED, NO_DEVICE, BAD_DEVICE, NO_CONTEXT, ILLEGAL, UNSUPPORTED = ERRORS

_PROTECTION = {0: 0, READ: mmap.PROT_READ, READ_WRITE: mmap.PROT_READ | mmap.PROT_WRITE}
_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
_NOWHERE = (1 << 64) - 1
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # linux/mman.h


@dataclass(slots=True)
class _Range:
    """Reserved addresses, and what lies there."""

    size: int
    mapped: bool = False
    access: int = 0


class SimulatedDriver:
    """What ctypes.CDLL("libcuda.so.1") would be: pass it to `Driver`, or call `driver()`."""

    def __init__(
        self,
        *,
        devices: int = 1,
        memory_bytes: int = 1 << 40,
        lacks: frozenset[int] = frozenset(),
        fails: Mapping[str, int] | None = None,
    ) -> None:
        """A machine.

        Args:
            devices: how many GPUs.
            memory_bytes: of each, for what this process makes.
            lacks: device attributes that are missing.
            fails: the CUresult that a call returns whatever it is given.
        """
        self.devices, self.memory_bytes = devices, memory_bytes
        self.lacks, self.fails = lacks, dict(fails or {})
        self.calls: list[str] = []
        """Every call made so far, by name."""
        self.contexts: dict[int, int] = {}
        """How often each device's primary context is retained."""
        self.stack_bytes: dict[int, int] = {}
        """Of each thread, by context; what was asked for."""
        self.handles: dict[int, int] = {}
        """Descriptors of memory by handle."""
        self.ranges: dict[int, _Range] = {}
        """Reserved addresses."""
        self._initialised = False
        self._stack: list[int] = []
        self._next_handle = 1
        self._private: set[int] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
        self._libc.mmap.restype = c_void_p
        for name in ("mprotect", "munmap"):
            getattr(self._libc, name).argtypes = (c_void_p, c_size_t, c_int)[: 2 + (name[1] == "p")]
        for name, arguments in CALLS.items():
            setattr(self, name, CFUNCTYPE(c_int, *arguments)(self._answer(name)))

    def driver(self) -> Driver:
        """A `Driver` over this machine whose tensors lie in host memory."""
        return Driver(self, host_view)

    def outstanding(self) -> int:
        """Contexts, handles and address ranges that nobody has given back."""
        return sum(self.contexts.values()) + len(self.handles) + len(self.ranges) + len(self._stack)

    def _answer(self, name: str) -> Callable[..., int]:
        rule = getattr(self, "_" + _WORD.sub("_", name[2:].removesuffix("_v2")).lower())
        free = name in ("cuInit", "cuGetErrorName")
        on_memory = name.startswith("cuMem") or name == "cuCtxSynchronize"

        def answer(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.fails:
                return self.fails[name]
            if not (self._initialised or free):
                return UNINITIALISED
            if on_memory and not self.contexts.get(self._stack[-1] - 1 if self._stack else -1):
                return NO_CONTEXT
            return int(rule(*arguments))

        return answer

    def _init(self, flags: int) -> int:
        self._initialised = flags == 0 and self.devices > 0
        return INVALID if flags else 0 if self.devices else NO_DEVICE

    def _get_error_name(self, code: int, name: Any) -> int:
        name[0] = c_char_p(ERRORS.get(code))
        return 0 if code in ERRORS else INVALID

    def _device_get(self, device: Any, index: int) -> int:
        if not 0 <= index < self.devices:
            return BAD_DEVICE
        device[0] = index
        return 0

    def _device_get_attribute(self, value: Any, which: int, device: int) -> int:
        if not 0 <= device < self.devices:
            return BAD_DEVICE
        value[0] = int(which in (VIRTUAL_MEMORY, POSIX_DESCRIPTORS) and which not in self.lacks)
        return 0

    def _device_primary_ctx_retain(self, context: Any, device: int) -> int:
        if not 0 <= device < self.devices:
            return BAD_DEVICE
        self.contexts[device] = self.contexts.get(device, 0) + 1
        context[0] = device + 1
        return 0

    def _device_primary_ctx_release(self, device: int) -> int:
        if not self.contexts.get(device):
            return NO_CONTEXT
        self.contexts[device] -= 1
        return 0

    def _ctx_get_current(self, context: Any) -> int:
        context[0] = self._stack[-1] if self._stack else None
        return 0

    def _ctx_push_current(self, context: int | None) -> int:
        if context is None or not self.contexts.get(context - 1):
            return NO_CONTEXT
        self._stack.append(context)
        return 0

    def _ctx_pop_current(self, context: Any) -> int:
        if not self._stack:
            return NO_CONTEXT
        context[0] = self._stack.pop()
        return 0

    def _ctx_set_limit(self, which: int, value: int) -> int:
        if not self._stack:
            return NO_CONTEXT
        if which != STACK_SIZE:
            return INVALID
        self.stack_bytes[self._stack[-1]] = value
        return 0

    def _ctx_synchronize(self) -> int:
        return 0

    def _mem_get_allocation_granularity(self, found: Any, what: Any, option: int) -> int:
        if option not in (0, 1) or not self._is_memory(what.contents):
            return INVALID
        found[0] = GRANULARITY
        return 0

    def _mem_create(self, handle: Any, size: int, what: Any, flags: int) -> int:
        if flags or size <= 0 or size % GRANULARITY or not self._is_memory(what.contents):
            return INVALID
        if {VIRTUAL_MEMORY, POSIX_DESCRIPTORS} & self.lacks:
            return UNSUPPORTED
        held = sum(os.fstat(fd).st_size for fd in self.handles.values())
        held += sum(r.size for r in self.ranges.values() if r.mapped)
        if held + size > self.memory_bytes:
            return FULL
        fd = os.memfd_create("simulated-gpu", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        handle[0] = self._new_handle(fd)
        if not what.contents.handle_types:
            self._private.add(handle[0])
        return 0

    def _mem_release(self, handle: int) -> int:
        if handle not in self.handles:
            return INVALID
        os.close(self.handles.pop(handle))
        return 0

    def _mem_address_reserve(self, at: Any, size: int, align: int, hint: int, flags: int) -> int:
        page = mmap.PAGESIZE
        if flags or size <= 0 or size % page or hint % page or align & (align - 1):
            return INVALID
        align = max(align, page)
        start = self._map_pages(None, size + align)
        if start == _NOWHERE:
            return FULL
        address = -(-start // align) * align
        for left, end in ((start, address), (address + size, start + size + align)):
            if end > left:
                self._libc.munmap(left, end - left)
        self.ranges[address] = _Range(size)
        at[0] = address
        return 0

    def _mem_address_free(self, address: int, size: int) -> int:
        found = self.ranges.get(address)
        if found is None or found.size != size or found.mapped:
            return INVALID
        self._libc.munmap(address, size)
        del self.ranges[address]
        return 0

    def _mem_map(self, address: int, size: int, offset: int, handle: int, flags: int) -> int:
        found = self.ranges.get(address)
        if found is None or found.mapped or found.size != size or handle not in self.handles:
            return INVALID
        fd = self.handles[handle]
        if flags or offset or size % GRANULARITY or size > os.fstat(fd).st_size:
            return INVALID
        self._map_pages(address, size, fd)
        found.mapped, found.access = True, 0
        return 0

    def _mem_unmap(self, address: int, size: int) -> int:
        found = self.ranges.get(address)
        if found is None or not found.mapped or found.size != size:
            return INVALID
        self._map_pages(address, size)
        found.mapped = False
        return 0

    def _mem_set_access(self, address: int, size: int, rights: Any, count: int) -> int:
        found = self.ranges.get(address)
        if found is None or not found.mapped or found.size != size:
            return INVALID
        for one in rights[:count]:
            if one.location.kind != ON_DEVICE or one.flags not in _PROTECTION:
                return INVALID
            if not 0 <= one.location.device < self.devices:
                return BAD_DEVICE
            self._libc.mprotect(address, size, _PROTECTION[one.flags])
            found.access = one.flags
        return 0

    def _mem_export_to_shareable_handle(self, into: int, handle: int, kind: int, flags: int) -> int:
        if flags or kind != DESCRIPTOR or handle not in self.handles or handle in self._private:
            return INVALID
        fd = os.dup(self.handles[handle])
        os.set_inheritable(fd, True)  # cuda.h promises nothing else
        c_int32.from_address(into).value = fd
        return 0

    def _mem_import_from_shareable_handle(self, handle: Any, fd: int | None, kind: int) -> int:
        try:
            facts = os.fstat(fd or 0)
        except OSError:
            return INVALID
        if kind != DESCRIPTOR or not stat.S_ISREG(facts.st_mode) or facts.st_size % GRANULARITY:
            return INVALID
        handle[0] = self._new_handle(os.dup(fd or 0))
        return 0

    def _memset_d8(self, address: int, value: int, size: int) -> int:
        for start, found in self.ranges.items():
            if start <= address and address + size <= start + found.size:
                if not found.mapped or found.access != READ_WRITE:
                    return ILLEGAL
                ctypes.memset(address, value, size)
                return 0
        return INVALID

    def _is_memory(self, what: Any) -> bool:
        return (
            what.kind == PINNED
            and what.handle_types in (0, DESCRIPTOR)
            and what.location.kind == ON_DEVICE
            and 0 <= what.location.device < self.devices
        )

    def _new_handle(self, fd: int) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self.handles[handle] = fd
        return handle

    def _map_pages(self, address: int | None, size: int, fd: int = -1) -> int:
        """Map without access: the pages of `fd`, or nothing."""
        flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        flags |= _MAP_NORESERVE | (_MAP_FIXED if address else 0)
        return int(self._libc.mmap(address, size, _PROTECTION[0], flags, fd, 0))


def host_view(owner: Any, device_index: int) -> torch.Tensor:
    """The `View` of simulated memory."""
    facts = owner.__cuda_array_interface__
    kind: Any = type("Held", (c_uint8 * facts["shape"][0],), {})
    held = kind.from_address(facts["data"][0])
    held.owner = owner  # the tensor keeps `held` alive
    return torch.frombuffer(held, dtype=torch.uint8)
