"""Signs that fresh weights do not have: gains and scales start as ones, and training turns some.

A program that takes a maximum before it scales, leaves out the scale in front of a norm, or picks a
branch by a gain's sign answers right as long as all of them are positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

TURNED = 1 / 8
"""Part of the numbers whose signs turn."""

SAME_SIZE = 4.0
"""An answer that many times as large, or as small, shows a parameter that is no scale: an exponent,
a logarithm, a rate of decay."""

ALONE = 8
"""Of constants that are not all to be turned together, so many are tried one by one."""

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def gains_of_norms(model: nn.Module) -> set[int]:
    """Parameters, by id, that only multiply what a norm of torch gives."""
    norms = (module for module in model.modules() if isinstance(module, NORMS))
    return {id(norm.weight) for norm in norms if norm.weight is not None}


def turn_signs(values: torch.Tensor, generator: torch.Generator) -> None:
    """Turn some signs in place: of several numbers at least one, of a single one as a coin says."""
    count = values.numel()
    turned = torch.rand(count, generator=generator) < (TURNED if count > 1 else 0.5)
    if count > 1:
        turned[int(torch.randint(count, (1,), generator=generator))] = True
    signs = torch.ones(count).masked_fill_(turned, -1.0).view(values.shape)
    values.mul_(signs.to(values))


def has_both_signs(values: torch.Tensor) -> bool:
    """Whether some numbers are below zero and some above."""
    if not values.is_floating_point() or not values.numel():
        return False
    low, high = (float(end) for end in values.aminmax())
    return low < 0.0 < high


def turn_constants(
    constants: Sequence[torch.Tensor], call: Callable[[], Any], generator: torch.Generator
) -> int:
    """Turn signs of parameters that started as constants, where the model is as it was with them.

    All together, or else the first ALONE one by one: what takes a root or a logarithm of one, or
    lets something decay by it, is left alone.

    Args:
        constants: parameters, of other constants than zero.
        call: calls the model; its answer.
        generator: draws which.

    Returns:
        How many were turned.
    """
    if not constants:
        return 0
    usual = _size(call())
    if _turned(constants, call, generator, usual):
        return len(constants)
    alone = constants[:ALONE] if len(constants) > 1 else ()
    return sum(_turned([constant], call, generator, usual) for constant in alone)


def _turned(
    constants: Sequence[torch.Tensor],
    call: Callable[[], Any],
    generator: torch.Generator,
    usual: float,
) -> bool:
    kept = [constant.detach().clone() for constant in constants]
    with torch.no_grad():
        for constant in constants:
            turn_signs(constant, generator)
        size = _size(call())
        stands = usual / SAME_SIZE <= size <= SAME_SIZE * usual
        if not stands:
            for constant, before in zip(constants, kept, strict=True):
                constant.copy_(before)
    return stands


def _size(answer: Any) -> float:
    """Root mean square over all floating outputs; not finite where one of them is not."""
    leaves = [t for t in tree_leaves(answer) if isinstance(t, torch.Tensor)]
    floats = [t.detach() for t in leaves if t.is_floating_point() and t.numel()]
    norms = (float(torch.linalg.vector_norm(t, dtype=_finer(t))) for t in floats)
    return math.sqrt(sum(norm * norm for norm in norms) / max(1, sum(t.numel() for t in floats)))


def _finer(values: torch.Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)
