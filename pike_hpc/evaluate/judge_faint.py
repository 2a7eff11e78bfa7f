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
from pike_hpc.evaluate.judge_size import card_bytes
from pike_hpc.evaluate.judge_widen import default_dtype

HARDLY = 1e-6
"""Of the root mean square of a gradient. Exact zeros are what is masked, or cut by a ReLU."""

RESIDUE = 1e-12
"""Where all that is smaller than HARDLY is smaller than this, it is what a sum of large numbers
leaves of nothing, as in a Fourier transform: what fades comes through all sizes."""

KEEPS = 20
"""A gradient keeps up to so many times what a call takes: 9 in ResNet-101, 17 in DenseNet-201
(computed on meta tensors, torch 2.13, 2026-11-26; the script is not kept)."""

MOST_BYTES = 16 << 30
"""What a gradient may take of a GPU, or a quarter of the card where that is less. What fades is a
long sequence, never a large one."""

Change = Callable[[torch.Tensor], torch.Tensor]


def is_affordable(device: torch.device) -> bool:
    """Whether a gradient has room, by what calls have taken since the peak was last forgotten.

    By the card, and not by what else is on it: a tier must not hang on neighbours.
    """
    if device.type != "cuda":
        return True
    took = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return KEEPS * took <= min(MOST_BYTES, card_bytes(device) // 4)


def faint(
    model: nn.Module,
    device: torch.device,
    arguments: Callable[[Change], Sequence[Any]],
    seed: int,
) -> list[torch.Tensor | None]:
    """Of each leaf of the input, where a mixture of all answers hardly depends on it; on the host.

    In float64, which does not lose what a thousand steps fade to. None for leaves of whole numbers
    and for those that nothing depends on. Empty where the model knows no float64 or takes no
    gradients.

    Args:
        model: left as it is.
        device: where it is.
        arguments: of a call, each leaf passed through what it is given.
        seed: of the mixture.

    Raises:
        OutOfMemoryError: there is no room.
    """
    try:
        gradients = _gradients(model, device, arguments, torch.Generator().manual_seed(seed))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does; a tier hangs on nothing that could not be asked
        return []
    return [None if gradient is None else _hardly(gradient) for gradient in gradients]


def _gradients(
    model: nn.Module,
    device: torch.device,
    arguments: Callable[[Change], Sequence[Any]],
    generator: torch.Generator,
) -> list[torch.Tensor | None]:
    given: list[torch.Tensor] = []

    def watched(leaf: torch.Tensor) -> torch.Tensor:
        is_float = leaf.is_floating_point()
        own = leaf.to(device, torch.float64 if is_float else leaf.dtype, copy=True)
        given.append(own.requires_grad_(is_float))
        return own.clone()  # a forward may write over its input

    def mixed(answer: torch.Tensor) -> torch.Tensor:
        weights = torch.randn(answer.shape, generator=generator, dtype=torch.float64)
        return (answer * weights.to(answer.device)).sum().to(device)

    twin = copy.deepcopy(model).double().requires_grad_(False)
    with (
        torch.enable_grad(),
        default_dtype(torch.float64),
        # Its recurrent layers take gradients in training alone, and its convolutions may go by way
        # of a Fourier transform.
        torch.backends.cudnn.flags(enabled=False),
    ):
        leaves: list[Any] = []
        describe_outputs(twin(*arguments(watched)), leaves)
        answers = [a for a in leaves if torch.is_tensor(a) and a.requires_grad]
        wanted = [leaf for leaf in given if leaf.requires_grad]
        if not answers or not wanted:
            return [None] * len(given)
        mixture = torch.stack([mixed(answer) for answer in answers]).sum()
        found = iter(torch.autograd.grad(mixture, wanted, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in given]


def _hardly(gradient: torch.Tensor) -> torch.Tensor | None:
    size, usual = gradient.abs(), gradient.square().mean().sqrt()
    faint = (size > 0) & (size < HARDLY * usual)
    return faint.cpu() if bool((faint & (size > RESIDUE * usual)).any()) else None
