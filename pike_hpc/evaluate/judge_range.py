"""Inputs beyond a task's own: does a candidate answer them as the reference does?

Much larger ones: a softmax that subtracts no maximum and a square in half precision overflow where
no exam looks. Where larger ones mean nothing, others in the place of what is the same in every
draw, a time step or a mask: who never reads it, or keeps what came of it, is right in every exam.
Tried only where the reference is right there itself, and never a reason to refuse: a task's inputs
are what it is judged on, so what comes of this is a tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pike_hpc.evaluate.correctness import compare
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_operations import Operations
from pike_hpc.evaluate.judge_signal import Leaves, Signal, scale
from pike_hpc.evaluate.judge_truth import Truth

FACTOR = 64.0
"""A power of two, so that scaling rounds nothing; exp overflows for most models that use it."""

OTHER, ANEW = 2.0, 0.5
"""What a constant input is multiplied by, and the deviation of what replaces one of zeros."""

GROSS, RIGHT = 0.1, 0.01
"""Errors over the signal there: from when on an answer is wrong, whatever its precision, and up to
when the reference counts as right."""

TOLD = 0.06
"""A constant that moves an answer less tells nobody: three times where the loosest tier ends."""

_CHECKED = (
    *("index", "gather", "scatter", "embedding", "take", "put", "loss", "cross_entropy"),
    *("bernoulli", "multinomial", "bincount", "assert"),
)
"""Parts of names of operations that end a GPU's process where a number is out of their range."""

_ASSERTED = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_async.msg",
        "aten::bernoulli",
        "aten::bernoulli_.Tensor",
        "aten::binary_cross_entropy",
        "aten::multinomial",
    }
)
"""Operations that do so for a number that no index is made of, mostly probabilities. With logits
there are none."""

_STRICT = ("assert", "bernoulli", "multinomial", "loss", "cross_entropy")
"""Those where the least step beyond may do so: not where a place is looked up."""


Move = Callable[[int, torch.Tensor], torch.Tensor]
"""Another tensor in the place of an input's leaf, given the leaf's number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WideRange:
    """One input beyond the task's own, and what is right there."""

    packed: torch.Tensor
    truth: list[torch.Tensor]
    signals: tuple[float, ...]
    bounds: Mapping[int, float]
    """By output leaf that is looked at: errors over the signal from which on it is wrong."""
    coarse_too: bool
    """Whether the reference under bfloat16 autocast is right as well."""

    def grossly_wrong(self, answer: Sequence[torch.Tensor]) -> bool:
        """Whether an answer to this input is not finite, or far from the truth."""
        return not _within(self.bounds, answer, self.truth, self.signals)


def wide_range(truth: Truth, signal: Signal) -> WideRange | None:
    """What is asked of candidates beyond the task's own inputs; None where nothing can be.

    Args:
        truth: of an admitted task.
        signal: of the same.
    """
    first, second = truth.range_seeds
    if truth.legacy or not signal.cheap:
        return None
    try:
        larger = _larger(truth, first)
        move = larger or _otherwise(truth, first, second)
        if move is None or _runs(truth, first, _CHECKED):
            return None
        plain = [] if larger else [truth.keep(t) for t in truth.answers(first)]
        with truth.moved(move):
            wide = [[truth.keep(t) for t in truth.answers(s)] for s in (first, second)]
            native = truth.natively(first)
            half = _half(truth, first)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no such numbers
        return None
    if not all(bool(t.isfinite().all()) for call in wide for t in call):
        return None
    signals = tuple(scale(truth.paired([w[i] for w in wide])) for i in range(len(wide[0])))
    if plain:  # who keeps what came of a constant answers as if it had not moved
        off = {i: compare(plain[i], wide[0][i], signals[i]).error for i in signal.floats}
        bounds = {i: min(GROSS, error / 2) for i, error in off.items() if error >= TOLD}
    else:
        bounds = dict.fromkeys(signal.floats, GROSS)
    if not bounds or not _within(dict.fromkeys(bounds, RIGHT), native, wide[0], signals):
        return None
    coarse = {i: min(RIGHT * 3, end / 3) for i, end in bounds.items()}
    packed = truth.pack(first)
    for number, view in enumerate(views(truth.frame.input_slots, packed)):
        view.copy_(move(number, view))
    return WideRange(
        packed=packed,
        truth=wide[0],
        signals=signals,
        bounds=bounds,
        coarse_too=half is not None and _within(coarse, half, wide[0], signals),
    )


def _within(
    bounds: Mapping[int, float], answer: Leaves, truth: Leaves, signals: Sequence[float]
) -> bool:
    errors = ((compare(answer[i], truth[i], signals[i]).error, end) for i, end in bounds.items())
    return all(math.isfinite(error) and error <= end for error, end in errors)


def _half(truth: Truth, seed: int) -> list[torch.Tensor] | None:
    try:
        with torch.autocast(truth.device.type, dtype=torch.bfloat16):
            return truth.natively(seed)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no bfloat16
        return None


class _Names(Operations):  # type: ignore[no-untyped-call]
    """Notes which operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


def _larger(truth: Truth, seed: int) -> Move | None:
    """Makes inputs larger; None where that means nothing: it does for numbers of both signs."""
    inputs = views(truth.frame.input_slots, truth.pack(seed))
    if not all(t.is_floating_point() and bool((t < 0).any() & (t > 0).any()) for t in inputs):
        return None
    return lambda _, leaf: leaf * FACTOR


def _otherwise(truth: Truth, *seeds: int) -> Move | None:
    """Moves what is the same in every draw, as far as these two tell; None where nothing is."""
    first, second = (views(truth.frame.input_slots, truth.pack(seed)) for seed in seeds)
    same = {
        i: bool(one.any())
        for i, (one, other) in enumerate(zip(first, second, strict=True))
        if one.is_floating_point() and torch.equal(one, other)
    }
    if not same:
        return None

    def move(number: int, leaf: torch.Tensor) -> torch.Tensor:
        if number not in same:
            return leaf
        if same[number]:
            return leaf * OTHER
        drawn = torch.Generator().manual_seed(number)
        return (ANEW * torch.randn(leaf.shape, generator=drawn)).to(leaf)

    return move


def checks_strictly(truth: Truth, seed: int) -> bool:
    """Whether inputs a little off those of `seed` may end this process, if it has a GPU."""
    found = _runs(truth, seed, _STRICT)
    truth.forget_inputs()
    return found


def asserts(truth: Truth, seed: int) -> bool:
    """Whether a layer left out may end this process, if it has a GPU: a sigmoid before a loss."""
    return not _ASSERTED.isdisjoint(_names(truth, seed))


def _runs(truth: Truth, seed: int, parts: Sequence[str]) -> bool:
    return any(part in name for name in _names(truth, seed) for part in parts)


def _names(truth: Truth, seed: int) -> set[str]:
    with _Names() as run:
        truth.natively(seed)
    return run.seen
