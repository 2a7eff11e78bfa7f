"""Signs that fresh weights do not have: gains and scales start as ones, and training turns some.

A program that takes a maximum before it scales, leaves out the scale in front of a norm, or picks a
branch by a gain's sign answers right as long as all of them are positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.correctness import rms
from pike_hpc.evaluate.judge_operations import (
    ASSERTED,
    COPIES,
    Operations,
    bare,
    is_dense,
    tensors_in,
    written,
)
from pike_hpc.evaluate.judge_scores import without_fast_path

TURNED = 1 / 8
"""Part of the numbers whose signs turn."""

SAME_SIZE = 4.0
"""An answer that many times as large, or as small, shows a parameter that is no scale: an exponent,
a logarithm. So does any number on the way to it that much larger, such as what a rate of decay has
grow before a norm."""

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
    lets something decay by it, is left alone. So are all where a number out of its range may end a
    GPU's process: in an index, or under an assertion.

    Args:
        constants: parameters, of other constants than zero.
        call: calls the model.
        generator: draws which.

    Returns:
        How many were turned. What the model made of its weights when it was called may be old.
    """
    if not constants:
        return 0
    usual = _watched(call)
    if usual is None or (constants[0].is_cuda and usual.may_end_it):
        return 0
    if _turned(constants, call, generator, usual):
        return len(constants)
    alone = constants[:ALONE] if len(constants) > 1 else ()
    return sum(_turned([constant], call, generator, usual) for constant in alone)


class _Sizes(Operations):  # type: ignore[no-untyped-call]
    """Notes the largest number that any operation makes, and what may end a GPU's process."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[torch.Tensor] = []
        """A number of each operation, where it was made: the host waits once, at the end."""
        self.may_end_it = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.name()
        given = tensors_in((args, kwargs))
        for wrote in written(func, given, made) if "empty" not in name else ():
            leaf = torch.view_as_real(wrote.resolve_conj()) if wrote.is_complex() else wrote
            if leaf.is_floating_point() and leaf.numel() and is_dense(leaf):
                low, high = leaf.aminmax()
                self._found.append(torch.maximum(-low, high).float())
            elif any(t.is_floating_point() for t in given) and bare(name) in COPIES:
                self.may_end_it = True
        self.may_end_it |= name in ASSERTED
        return made

    @property
    def largest(self) -> float:
        """Of what is finite: masks are not."""
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for number in self._found:
            by_device.setdefault(number.device, []).append(number)
        found = [
            number for numbers in by_device.values() for number in torch.stack(numbers).tolist()
        ]
        return max((number for number in found if math.isfinite(number)), default=0.0)


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call looked like."""

    size: float
    """Of what it answered: of each output the root mean square, all together."""
    largest: float
    may_end_it: bool


def _turned(
    constants: Sequence[torch.Tensor],
    call: Callable[[], Any],
    generator: torch.Generator,
    usual: _Call,
) -> bool:
    kept = [constant.detach().clone() for constant in constants]
    with torch.no_grad():
        for constant in constants:
            turn_signs(constant, generator)
        found = _watched(call)
        stands = (
            found is not None
            and usual.size / SAME_SIZE <= found.size <= SAME_SIZE * usual.size
            and found.largest <= SAME_SIZE * usual.largest
        )
        if not stands:
            for constant, before in zip(constants, kept, strict=True):
                constant.copy_(before)
    return stands


def _watched(call: Callable[[], Any]) -> _Call | None:
    """A call; None where it fails, or answers nothing whose size would tell."""
    try:
        with torch.no_grad(), without_fast_path(), _Sizes() as seen:
            answer = call()
        numbers = [t for t in tensors_in(answer) if t.is_floating_point() or t.is_complex()]
        size = math.hypot(*(rms(t) for t in numbers))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no such signs, or no modes
        return None
    return _Call(size, seen.largest, seen.may_end_it) if 0.0 < size < math.inf else None
