"""The GPU that tests run on, or why there is none."""

import os

from builders.required import lacking

from pike_hpc.evaluate.device import Device, detect


def the_gpu() -> Device:
    """The device as every command finds it."""
    found = detect("auto", visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if found.torch_device != "cuda":
        lacking("cuda", found.why)
    return found


def torch_sees_it() -> None:
    """For tests that need no lane: what torch itself says."""
    import torch  # noqa: PLC0415 - collecting needs no torch

    if not torch.cuda.is_available():
        lacking("cuda", "torch sees no GPU")
