"""Memory that judge and runner share: on the GPU where its driver can pass it on, else on the host.

Bytes are a uint8 tensor either way; slots lie over it. What a runner wrote is copied out once and
judged from the copy. Knows no process and no clock.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.layout import FLOATS, Slot
from pike_hpc.evaluate.runner import device_memory

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUICK = ("float64", "float32")
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5
"""All bits set is a NaN in every float format; integers get a pattern that is no small number."""


class Place(enum.StrEnum):
    """Where buffers lie."""

    HOST = "host"
    DEVICE = "device"


class Memory(Protocol):
    """One buffer."""

    tensor: torch.Tensor
    """Its bytes."""

    @property
    def fd(self) -> int:
        """What a runner is handed."""

    def close(self) -> None:
        """Let go of it. Can be called again."""


class HostMemory:
    """A sealed memfd."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._buffer = SharedBuffer(name, size_bytes)
        self.tensor = bytes_of(self._buffer)

    @property
    def fd(self) -> int:
        """The memfd."""
        return self._buffer.fd

    def close(self) -> None:
        """Close it; the mapping goes with the last tensor over it."""
        self._buffer.close()


class DeviceMemory:
    """Memory of the GPU, exported."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self._buffer = device_memory.export(size_bytes, device.index or 0)
        self.tensor = self._buffer.tensor(torch.uint8, (size_bytes,), 0)

    @property
    def fd(self) -> int:
        """The driver's handle."""
        return self._buffer.fd

    def close(self) -> None:
        """Give it back to the driver."""
        del self.tensor
        self._buffer.close()


def make(place: Place, name: str, size_bytes: int, device: torch.device) -> Memory:
    """A buffer in `place`."""
    if place is Place.DEVICE:
        return DeviceMemory(size_bytes, device)
    return HostMemory(name, size_bytes)


def best_place(device: torch.device) -> tuple[Place, str]:
    """Where buffers can lie on this machine, and why not on the device where they can't."""
    if device.type != "cuda":
        return Place.HOST, ""
    why = device_memory.supported(device.index or 0)
    return (Place.HOST, why) if why else (Place.DEVICE, "")


def bytes_of(buffer: SharedBuffer) -> torch.Tensor:
    """The bytes of a memfd."""
    return torch.frombuffer(buffer.map, dtype=torch.uint8)


def views(slots: Sequence[Slot], raw: torch.Tensor) -> list[torch.Tensor]:
    """Tensors over bytes."""
    return [
        raw[s.offset : s.offset + s.size_bytes].view(getattr(torch, s.dtype)).view(s.shape)
        if s.count
        else torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=raw.device)
        for s in slots
    ]


class Poison:
    """Makes output bytes such that what was never written can be told."""

    def __init__(self, slots: Sequence[Slot], rows: torch.Tensor) -> None:
        """Of buffers like `rows`: (calls, bytes of one call's outputs)."""
        self._slots, self._rows = slots, rows
        # A pattern to copy costs one kernel instead of one a slot; large outputs have no room for
        # it and no need.
        self._pattern = torch.zeros_like(rows[0]) if rows.shape[0] > 1 else None
        if self._pattern is not None:
            poison(slots, self._pattern)

    def __call__(self, count: int) -> None:
        """Poison the first `count` rows."""
        if self._pattern is None:
            poison(self._slots, self._rows[0])
        else:
            self._rows[:count].copy_(self._pattern)


def poison(slots: Sequence[Slot], raw: torch.Tensor) -> None:
    """Fill every slot with a pattern that `unwritten` knows."""
    for slot in slots:
        mark = _FLOAT_POISON if slot.dtype in FLOATS else _OTHER_POISON
        raw[slot.offset : slot.offset + slot.size_bytes].fill_(mark)


@functools.cache
def cold_cache(device: torch.device) -> Callable[[], None]:
    """What evicts a GPU's L2 cache, as triton's do_bench does, by writing twice its size."""
    if device.type != "cuda":
        return lambda: None
    size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    waste = torch.empty(size // 4, dtype=torch.int32, device=device)

    def evict() -> None:
        waste.zero_()

    return evict


def unwritten(slots: Sequence[Slot], raw: torch.Tensor) -> float:
    """The part of the elements that still holds poison."""
    total = left = 0
    for slot in slots:
        if not slot.count or slot.dtype in ("bool", "int8", "uint8"):
            continue  # a byte has no value that an honest answer can't hold
        width = min(8, slot.size_bytes // slot.count)
        mark = _FLOAT_POISON if slot.dtype in FLOATS else _OTHER_POISON
        pattern = int.from_bytes(bytes([mark]) * width, "little", signed=width > 1)
        total += slot.size_bytes // width
        words = raw[slot.offset : slot.offset + slot.size_bytes]
        # Poison is NaN: a finite sum, much cheaper than looking for it, rules it out.
        values = words.view(getattr(torch, slot.dtype)) if slot.dtype in _QUICK else None
        if values is not None and bool(values.sum().isfinite()):
            continue
        left += int(torch.count_nonzero(words.view(_WORDS[width]) == pattern))
    return left / total if total else 0.0
