"""Which numbers of an input an answer all but forgets: where its gradient nearly vanishes.

A recurrence may read its input in any order, so that what it forgets lies in no one stretch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.judge_frame import describe_outputs
from pike_hpc.evaluate.judge_widen import default_dtype

HARDLY = 1e-6
"""Of the root mean square of a gradient. Exact zeros are what is masked, or cut by a ReLU."""

Change = Callable[[torch.Tensor], torch.Tensor]


def faint(
    model: nn.Module, device: torch.device, arguments: Callable[[Change], Sequence[Any]]
) -> list[torch.Tensor | None]:
    """Of each leaf of the input, where a mixture of all answers hardly depends on it; on the host.

    In float64, which does not lose what a thousand steps fade to. None for leaves of whole numbers
    and for those that nothing depends on. Empty where the model knows no float64, takes no
    gradients or finds no room.

    Args:
        model: left as it is.
        device: where it is.
        arguments: of a call, each leaf passed through what it is given.
    """
    given: list[torch.Tensor] = []

    def watched(leaf: torch.Tensor) -> torch.Tensor:
        is_float = leaf.is_floating_point()
        own = leaf.to(device, torch.float64 if is_float else leaf.dtype, copy=True)
        given.append(own.requires_grad_(is_float))
        return own.clone()  # a forward may write over its input

    # cudnn's take gradients in training alone.
    recurs = any(isinstance(module, nn.RNNBase) for module in model.modules())
    try:
        twin = copy.deepcopy(model).double().requires_grad_(False)
        with (
            torch.enable_grad(),
            default_dtype(torch.float64),
            torch.backends.cudnn.flags(enabled=not recurs),
        ):
            leaves: list[Any] = []
            describe_outputs(twin(*arguments(watched)), leaves)
            answers = [a for a in leaves if torch.is_tensor(a) and a.requires_grad]
            wanted = [leaf for leaf in given if leaf.requires_grad]
            if not answers or not wanted:
                return [None] * len(given)
            mixture = torch.stack([(a * torch.randn_like(a)).sum() for a in answers]).sum()
            found = iter(torch.autograd.grad(mixture, wanted, allow_unused=True))
    except Exception:  # whatever a forward does; a tier hangs on nothing that could not be asked
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return []
    return [_hardly(next(found)) if leaf.requires_grad else None for leaf in given]


def _hardly(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    size = gradient.abs()
    return ((size > 0) & (size < HARDLY * gradient.square().mean().sqrt())).cpu()
