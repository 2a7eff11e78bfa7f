"""How large a task is, found on meta tensors: nothing is allocated and nothing computed.

And how large the card is that it is for.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from pike_hpc.evaluate.judge_weights import held
from pike_hpc.machine import available_memory_bytes
from pike_hpc.records import PikeError
from pike_hpc.tasks.load import LoadedTask

SMALL_FLOPS, SMALL_BYTES = 1e11, 1 << 30
"""Up to here a task is admitted on a CPU within about a minute."""

HOST_ROOM = 2
"""Times a model's float64 size that must be free on the host: the copy, and what forward makes."""


def model_bytes(loaded: LoadedTask) -> int | None:
    """Bytes of everything the model holds; None where it can't be built on meta tensors."""
    try:
        model = loaded.make_model(device="meta")
    except PikeError:
        return None
    tensors = {id(t): t for t in model.parameters()} | {id(t): t for _, _, t in held(model)}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _input_bytes(loaded: LoadedTask) -> int:
    try:
        inputs = loaded.inputs(device="meta")
    except PikeError:
        return 0
    return sum(t.nbytes for t in tree_leaves(inputs) if torch.is_tensor(t))


def flops(loaded: LoadedTask) -> int | None:
    """Floating-point operations of one call; None where meta tensors can't go through."""
    counter = FlopCounterMode(display=False)
    try:
        model = loaded.make_model(device="meta").eval()
        inputs = loaded.inputs(device="meta")
        with torch.inference_mode(), counter:
            model(*inputs)
    except Exception:  # whatever a task does with tensors that hold no numbers
        return None
    return counter.get_total_flops()


def too_large_for_cpu(loaded: LoadedTask) -> str:
    """Why the task is not tried on a CPU unless asked for by name; empty where it is."""
    size = (model_bytes(loaded) or 0) + _input_bytes(loaded)
    if size > SMALL_BYTES:
        return f"too large for a CPU unless asked for by name: {size / 2**30:.1f} GiB with inputs"
    work = flops(loaded) or 0
    if work > SMALL_FLOPS:
        return f"too large for a CPU unless asked for by name: {work / 1e9:.0f} GFLOP a call"
    return ""


def card_bytes(device: torch.device) -> int:
    """Memory of a GPU; 0 of a CPU, where everything is on the host anyway."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def host_has_room(model: nn.Module) -> bool:
    """Whether a float64 copy of all that a model holds fits beside what runs on the host."""
    tensors = [*model.parameters(), *(t for _, _, t in held(model))]
    free = available_memory_bytes()
    return free is None or free > HOST_ROOM * sum(t.numel() * 8 for t in tensors)
