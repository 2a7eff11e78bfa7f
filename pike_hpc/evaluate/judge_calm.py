"""Weights under which a deep network does not make much of rounding.

Calibrated BatchNorm keeps a signal alive through a hundred layers of fresh weights, and each
normalised ReLU on the way makes noise about 1.2 times as large as the signal (Yang et al., "A mean
field theory of batch normalization", 2019): TF32, at which torch convolves unless told otherwise,
ends as far off as a wrong answer. Trained networks do no such thing. Where a network does, its
branches are given less weight beside what they are added to (as in Goyal et al., "Accurate, large
minibatch SGD", 2017, where it is none at first), and what ReLU cuts is made less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pike_hpc.evaluate.correctness import rms_difference
from pike_hpc.evaluate.judge_frame import answer_leaves
from pike_hpc.evaluate.judge_weights import calibrate, norms_of
from pike_hpc.evaluate.runner.state import State

CALM = 6e-3
"""Rounding weights to COARSE_BITS may change the answers by so much of their signal: activations
rounded as well come to twice that, which a tier below CAP has room for."""
COARSE_BITS = 10
"""Of a mantissa that are kept: those of TF32 and of float16."""
MANTISSA_BITS = 23
LADDER = ((0.2, 0.0), (0.2, 0.5), (0.2, 1.0))
"""Tried in this order: what the gains of norms before a sum are multiplied by, and what is added
to the biases of the others, in units of their gains. The first that is calm is taken."""
SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})

Batches = Sequence[Sequence[Any]]


def settle_norms(model: nn.Module, batches: Callable[[], Batches]) -> int:
    """Calibrate BatchNorm; where answers are not calm, under the calmest gains of the ladder.

    Args:
        model: with its weights; gains and biases of its norms may be changed.
        batches: arguments of two calls, made anew: a forward may write what it is given.

    Returns:
        How many layers were calibrated.
    """
    norms = [norm for norm in norms_of(model) if norm.affine]
    count = calibrate(model, batches()) if norms_of(model) else 0
    if not (count and norms) or (calmest := roughness(model, batches)) <= CALM:
        return count
    gains = [norm.weight.detach().clone() for norm in norms]
    biases = [None if norm.bias is None else norm.bias.detach().clone() for norm in norms]
    summed = before_a_sum(model, batches()[0])

    def climb(gain: float, shift: float) -> float:
        with torch.no_grad():
            for norm, weight, bias in zip(norms, gains, biases, strict=True):
                part, moved = (gain, 0.0) if norm in summed else (1.0, shift)
                norm.weight.copy_(weight * part)
                if bias is not None:
                    norm.bias.copy_(bias * part + moved * weight.abs())
        calibrate(model, batches())
        return roughness(model, batches)

    best = (1.0, 0.0)
    for rung in LADDER:
        if (found := climb(*rung)) <= CALM:
            return count
        if found < calmest:
            best, calmest = rung, found
    climb(*best)
    return count


def roughness(model: nn.Module, batches: Callable[[], Batches]) -> float:
    """How far rounded weights move its answers, over what another input does; the worst output.

    0 where an output does not depend on its input, or is not floating. What calls leave in the
    model is put back, so that each begins alike.
    """
    state = State(model)

    def answers(batch: Sequence[Any]) -> list[torch.Tensor]:
        try:
            return answer_leaves(model, batch)
        finally:
            state.restore()

    first, second = (answers(batch) for batch in batches())
    with rounded(model):
        coarse = answers(batches()[0])
    worst = 0.0
    for a, b, c in zip(first, second, coarse, strict=True):
        if a.is_floating_point() and (signal := rms_difference(a, b)) > 0.0:
            worst = max(worst, rms_difference(a, c) / signal)
    return worst


@contextmanager
def rounded(model: nn.Module) -> Any:
    """Inside, matrices and kernels in float32 have mantissas of COARSE_BITS."""
    wide = [p for p in model.parameters() if p.dim() > 1 and p.dtype == torch.float32]
    kept = [p.detach().clone() for p in wide]
    try:
        with torch.no_grad():
            for parameter in wide:
                parameter.copy_(_coarse(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(wide, kept, strict=True):
                parameter.copy_(value)


def _coarse(values: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest, halves away from zero."""
    lost = MANTISSA_BITS - COARSE_BITS
    bits = values.detach().contiguous().view(torch.int32) + (1 << (lost - 1))
    return (bits & -(1 << lost)).view(torch.float32)


def before_a_sum(model: nn.Module, batch: Sequence[Any]) -> set[nn.Module]:
    """Norms whose output is added to something; of two that are added, the one called last."""
    watch = _Sums()
    hooks = [norm.register_forward_hook(watch.made) for norm in norms_of(model)]
    try:
        with torch.no_grad(), watch:
            model(*batch)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.found


class _Sums(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[nn.Module] = set()
        self._outputs: dict[int, tuple[int, nn.Module, torch.Tensor]] = {}

    def made(self, norm: nn.Module, arguments: object, output: torch.Tensor) -> None:
        # The output is kept, so that nothing else gets its id.
        self._outputs[id(output)] = len(self._outputs), norm, output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in SUMS:
            terms = [self._outputs[id(a)] for a in args if id(a) in self._outputs]
            if terms:
                self.found.add(max(terms, key=lambda term: term[0])[1])
        return func(*args, **(kwargs or {}))
