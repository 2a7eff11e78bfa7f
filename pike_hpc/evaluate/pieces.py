"""Outputs of any size, a piece at a time, and which of their parts are looked at one by one.

An error that is small beside the whole output may be all of a part: of a stretch of neighbours, or
of everything with one index in some dimension, such as a channel. Works on the methods of tensors
it is handed and imports no torch itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PIECE = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Elements compared at a time: a few float64 pieces fit a core's cache, or fill a GPU."""
LOCAL_ELEMENTS = 64
"""Neighbours that make a stretch."""
ROWS = 16
"""From so many elements on, what has one index is looked at like a stretch: a channel that is off
hides among 64 neighbours."""


def real(values: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return values.reshape(-1).view(values.real.dtype) if values.is_complex() else values


def pieces(*tensors: Tensor, step: int = 1) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of each tensor as float64, about PIECE elements at a time.

    Outputs reach 10^8 elements: whole float64 copies would cost more than the model. Where one of
    the tensors lies on a GPU, the stretches go there: a CPU takes tens of times as long.

    Args:
        tensors: of one number of elements.
        step: every piece but the last is a multiple of so many elements.
    """
    flat = [real(t).reshape(-1) for t in tensors]
    there = next((t.device for t in flat if t.device.type != "cpu"), flat[0].device)
    piece = _piece(*flat)
    piece = max(1, piece // step) * step
    for start in range(0, flat[0].numel(), piece):
        yield tuple(t[start : start + piece].to(there).double() for t in flat)


def stretches(squares: Tensor) -> Tensor:
    """Sums over stretches of the last dimension, which is all there is: (..., stretches)."""
    short = -squares.shape[-1] % LOCAL_ELEMENTS
    if short:
        longer = squares.new_zeros(*squares.shape[:-1], squares.shape[-1] + short)
        longer[..., : squares.shape[-1]] = squares
        squares = longer
    return squares.view(*squares.shape[:-1], -1, LOCAL_ELEMENTS).sum(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indices:
    """The dimensions of an output whose indices are looked at one by one.

    Those whose indices lie side by side in a stretch, which would show none of them: the last ones.
    Not the first, which mostly is the batch.
    """

    sizes: tuple[int, ...]
    """Of the last dimensions, down to the first that is looked at; complex numbers as pairs."""
    looked: tuple[int, ...]
    """Which of them are; none where there are too few elements with one index."""
    elements: int
    """Of the output."""

    @classmethod
    def of(cls, values: Tensor, *beside: Tensor) -> Indices:
        """Those of an output.

        Args:
            values: the answers.
            beside: what they are compared with; what repeats after more than a piece of either
                is left out.
        """
        elements = real(values).numel()
        shape = list(values.shape)
        if shape:
            shape[-1] *= elements // max(1, values.numel())
        most, period, first = _piece(values, *beside), 1, len(shape)
        wanted: list[int] = []
        while first > 1 and period < LOCAL_ELEMENTS:
            size = shape[first - 1]
            if not size or math.lcm(period * size, LOCAL_ELEMENTS) > most:
                break
            first, period = first - 1, period * size
            if size > 1 and elements // size >= ROWS:
                wanted.append(first)
        if not wanted:
            return cls(sizes=(), looked=(), elements=elements)
        start = min(wanted)
        looked = tuple(sorted(dim - start for dim in wanted))
        return cls(sizes=tuple(shape[start:]), looked=looked, elements=elements)

    @property
    def period(self) -> int:
        """After so many elements all of them repeat; 0 where none is looked at."""
        return math.prod(self.sizes) if self.looked else 0

    @property
    def step(self) -> int:
        """Pieces of a multiple of so many elements hold whole periods and stretches."""
        return math.lcm(max(1, self.period), LOCAL_ELEMENTS)

    def sums(self, squares: Tensor) -> Tensor:
        """(..., elements) summed over periods: (..., period). For `means`, over pieces."""
        return squares.view(*squares.shape[:-1], -1, self.period).sum(dim=-2)

    def means(self, sums: Tensor) -> list[Tensor]:
        """Of each dimension that is looked at the mean by index: (..., size)."""
        table = sums.view(*sums.shape[:-1], *self.sizes)
        before = sums.dim() - 1
        found = []
        for dim in self.looked:
            others = [before + other for other in range(len(self.sizes)) if other != dim]
            total = table.sum(dim=others) if others else table
            found.append(total / (self.elements // self.sizes[dim]))
        return found


def _piece(*values: Tensor) -> int:
    return max(PIECE.get(t.device.type, PIECE["cpu"]) for t in values)
