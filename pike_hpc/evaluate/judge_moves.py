"""Other inputs in the place of a task's own: of another size, mean or shape, or a constant moved.

What a task draws hides what a program leaves out: a polynomial is a function on [0, 1], a cold
softmax is a maximum, numbers drawn at random are never alike, a mean of zero need not be taken
off, whoever divides by a sum of one need not, a sum over hundreds of draws is hardly ever so far
from its mean that a ReLU behind it turns, and the mean of some is that of all. What would mean
something else stays: beside other inputs whole numbers are labels and masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

FACTOR = 64.0
"""A power of two, so that scaling rounds nothing; exp overflows for most models that use it."""

MILD = 4.0
"""The same of numbers of one sign: probabilities, variances, distances. Most of what is a function
of such inputs is none of ones 64 times as large."""

OTHER, ANEW = 2.0, 0.5
"""What a constant input is multiplied by, and the deviation of what replaces one of zeros."""

BITS = 2
"""Significant bits of coarse inputs: of a hundred such many are alike, and every format has
them."""

SHIFT = 1.5
"""Standard deviations by which numbers of both signs are moved: most have one sign then."""

CLOSER = 0.5
"""What is left of the deviation of numbers of one sign: they are nearer to their mean."""

PEAK = 4
"""The power of which peaked inputs have the shape: of `rand` a third is below a hundredth of the
largest number then, which stays as it is. So a program that looks at the range sees nothing."""

FAINT, WHOLE_PART = 1 / 8, 1 / 8
"""What is left of most slices of banded inputs along an axis, and the part of them that stays."""

FAINTEST = FAINT**2
"""Where slices of several axes meet: below it a norm's epsilon would count."""

NUDGES = 1 + 2.0**-9, 1 - 2.0**-10
"""Multiples of coarse inputs that are as much alike: who rounds them does not depend on that."""

Move = Callable[[int, torch.Tensor], torch.Tensor]
"""Another tensor in the place of an input's leaf, given the leaf's number."""


HEAD = 1024
"""Numbers of an input that mostly tell whether all of them are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputKind:
    """What two draws tell of one leaf of the inputs."""

    is_float: bool
    both_signs: bool
    whole: bool
    """Whether it holds whole numbers alone."""
    same: bool
    """Whether it is the same in both."""
    zeros: bool

    @property
    def may_be_any(self) -> bool:
        """Whether other numbers mean the same there: those of labels and masks do not."""
        return self.is_float and not self.whole

    @property
    def is_drawn(self) -> bool:
        """The same of what is another one in every draw."""
        return self.may_be_any and not self.same


def kinds_of(
    first: Iterable[torch.Tensor], second: Iterable[torch.Tensor]
) -> tuple[InputKind, ...]:
    """What two draws tell, leaf by leaf."""
    return tuple(_kind(one, other) for one, other in zip(first, second, strict=True))


def larger(kinds: Sequence[InputKind]) -> Move | None:
    """Makes inputs larger; None where that means nothing."""
    all_whole = not any(kind.may_be_any for kind in kinds)
    return _scaled(
        {
            i: FACTOR if kind.both_signs else MILD
            for i, kind in enumerate(kinds)
            if (kind.both_signs and (all_whole or kind.may_be_any)) or kind.is_drawn
        }
    )


def smaller(kinds: Sequence[InputKind]) -> Move | None:
    """Makes inputs smaller, but for whole numbers; None where that means nothing."""
    return _scaled(
        {
            i: 1 / FACTOR if kind.both_signs else 1 / MILD
            for i, kind in enumerate(kinds)
            if kind.is_drawn
        }
    )


def coarser(kinds: Sequence[InputKind]) -> Move | None:
    """Rounds inputs, so that there are ties; None where nothing is to be rounded."""
    return _reshaped(kinds, lambda wide, kind: _rounded(wide))


def shifted(kinds: Sequence[InputKind]) -> Move | None:
    """Moves the mean of inputs of both signs, and others to theirs; None where none is drawn."""
    return _reshaped(kinds, _shifted)


def peaked(kinds: Sequence[InputKind]) -> Move | None:
    """Makes all but the largest numbers small; None where no input is drawn."""
    return _reshaped(kinds, _peaked)


def banded(kinds: Sequence[InputKind]) -> Move | None:
    """Leaves few slices of inputs as they are, along each axis; None where no input is drawn."""
    return _reshaped(kinds, _banded)


def otherwise(kinds: Sequence[InputKind]) -> Move | None:
    """Moves what is the same in every draw; None where nothing is."""
    zeros = {i: kind.zeros for i, kind in enumerate(kinds) if kind.is_float and kind.same}
    if not zeros:
        return None

    def move(number: int, leaf: torch.Tensor) -> torch.Tensor:
        if number not in zeros:
            return leaf
        if not zeros[number]:
            return leaf * OTHER
        drawn = torch.Generator().manual_seed(number)
        return (ANEW * torch.randn(leaf.shape, generator=drawn)).to(leaf)

    return move


def nudged(move: Move, by: float) -> Move:
    """A move, and then all that it moves a little larger or smaller."""

    def nudge(number: int, leaf: torch.Tensor) -> torch.Tensor:
        moved = move(number, leaf)
        return moved if moved is leaf else moved * by

    return nudge


def _kind(one: torch.Tensor, other: torch.Tensor) -> InputKind:
    is_float = one.is_floating_point()
    return InputKind(
        is_float=is_float,
        both_signs=is_float and bool((one < 0).any() & (one > 0).any()),
        whole=not is_float or (_is_whole(one.flatten()[:HEAD]) and _is_whole(one)),
        same=torch.equal(one, other),
        zeros=not bool(one.any()),
    )


def _is_whole(numbers: torch.Tensor) -> bool:
    return torch.equal(numbers, numbers.round())


def _scaled(factors: Mapping[int, float]) -> Move | None:
    if not factors:
        return None
    return lambda i, leaf: leaf * factors[i] if i in factors else leaf


def _reshaped(
    kinds: Sequence[InputKind], shape: Callable[[torch.Tensor, InputKind], torch.Tensor]
) -> Move | None:
    """Does the same to the finite numbers of all that is drawn; None where nothing is."""
    numbers = {i: kind for i, kind in enumerate(kinds) if kind.is_drawn}
    if not numbers:
        return None

    def move(number: int, leaf: torch.Tensor) -> torch.Tensor:
        if number not in numbers:
            return leaf
        wide = leaf.double() if leaf.dtype is torch.float64 else leaf.float()
        finite = wide.isfinite()
        moved = shape(torch.where(finite, wide, 0.0), numbers[number])
        return torch.where(finite, moved, wide).to(leaf)

    return move


def _rounded(wide: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(wide)
    return torch.ldexp((mantissa * 2**BITS).round() / 2**BITS, exponent)


def _shifted(wide: torch.Tensor, kind: InputKind) -> torch.Tensor:
    if kind.both_signs:
        return wide + SHIFT * wide.std(correction=0)
    mean = wide.mean()
    return mean + CLOSER * (wide - mean)


def _peaked(wide: torch.Tensor, kind: InputKind) -> torch.Tensor:
    return wide * (wide.abs() / wide.abs().amax().clamp_min(1e-30)) ** (PEAK - 1)


def _banded(wide: torch.Tensor, kind: InputKind) -> torch.Tensor:
    """Which slices stay is told by their first numbers: nobody knows it who has not read those.

    Rows of a batch stay alike: a faint one would count for little. Those of a square matrix do not,
    so that a symmetric one stays symmetric.
    """
    together = wide.new_ones(())
    for axis, count in enumerate(wide.shape):
        if axis == 0 and wide.dim() > 1 and count not in wide.shape[1:]:
            continue
        line = wide[tuple(slice(None) if a == axis else 0 for a in range(wide.dim()))]
        factors = torch.full_like(line, FAINT)
        factors[line.abs().topk(math.ceil(WHOLE_PART * count)).indices] = 1.0
        together = together * factors.view(-1, *[1] * (wide.dim() - 1 - axis))
    return wide * together.clamp_min(FAINTEST)
