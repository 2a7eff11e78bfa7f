"""The judge's context on a GPU: little memory set aside for stacks, and whether it still answers.

Runners have the driver's own default: what is timed runs as it would anywhere.
"""

from __future__ import annotations

import torch

from pike_hpc.evaluate.runner.cuda_driver import STACK_SIZE, DeviceMemoryError, Driver

STACK_BYTES = 256
"""Of each thread. A context sets as much aside for every thread that a GPU can hold at a time: 198
MiB less of an H200 than the driver's 1,024. A kernel that needs more gets it with its launch."""


def make_context(device: torch.device, *, driver: Driver | None = None) -> None:
    """Make the context that torch will use, before it does, and keep it while this process lives.

    A driver that will not have it so leaves torch to make its own; so does a CPU.
    """
    if device.type != "cuda":
        return
    try:
        driver = driver or Driver.open()
        context = driver.retain(driver.device(device.index or 0))
        driver.within(context, "cuCtxSetLimit", STACK_SIZE, STACK_BYTES)
    except DeviceMemoryError:
        return  # it costs memory, no more


def settle(device: torch.device) -> None:
    """Wait for whatever this process asked of a device; on a CPU nothing is under way.

    Raises:
        Exception: of torch's: the context has ended, by an assertion on the device for one, and
            answers nothing any more.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
