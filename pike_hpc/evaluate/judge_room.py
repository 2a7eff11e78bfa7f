"""Room on a GPU that judges share: torch gives back what it keeps where others may want it.

What a set-up had used took the driver a second to take back, three times, where 24 judges were at
work (docs/benchmarks.md, "Throughput").
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pike_hpc.machine import available_memory_bytes

ROOM_BYTES = 8 << 30
"""With less of a GPU free, memory is short: no runner starts ahead, and kept tasks rest."""

PLENTY_BYTES = 32 << 30
"""With so much free nobody else wants what is kept for later: few tasks take as much in all."""

KEPT_BYTES = 8 << 30
"""More than this goes back in any case: of six judges on a card of 141 GB a third, all together."""


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken: of the GPU, or of the machine where the device is a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory_bytes() or 0


def free_on(device: torch.device) -> Callable[[], int]:
    """What tells a GPU's free memory; on a CPU there is always room."""
    if device.type == "cpu":
        return lambda: PLENTY_BYTES
    return lambda: free_bytes(device)


def give_back(device: torch.device, *, enough: float = PLENTY_BYTES) -> None:
    """Have torch give back what it keeps for later, where that is much or less is free than enough.

    A judge that has no orders keeps what it has, whatever others take meanwhile.
    """
    if device.type == "cuda" and (keeps_much(device) or free_bytes(device) < enough):
        torch.cuda.empty_cache()


def keeps_much(device: torch.device) -> bool:
    """Whether torch keeps more of a GPU than it should, however much is free."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return kept > KEPT_BYTES
