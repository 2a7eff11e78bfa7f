"""What was seen of a layer's units before they bend, and what is to become of its parameters."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch

FAR, NEAR = 1.5, 1.0
"""Deviations that a unit's mean may be off, and that it is moved to where it is further: one in
fifteen turns there, and one in six here."""

QUIET = 0.1
"""A layer whose units deviate by less gets weights for a deviation of one: plain layers have 0.58
of what the one before them had, and float16 sees nothing of the twentieth."""

STRAIGHT = 0.4
"""So does one before what bends the less the smaller its numbers are. Between weights of 0.02, 64
wide, units deviate by 0.02 * sqrt(64) = 0.16, where GELU is a line but for 17 % of what it gives;
at 0.4 for 36 %."""

ROWS = 16
"""Numbers of a unit that its mean and deviation are known from, at least."""

STILL = 1e-3
"""Units that deviate by less of their mean are those of a constant, or made of rounding."""

MOST_GAIN = 32.0
"""Who needs more looks at averages, and of what moves in those much is rounding."""


@dataclass(slots=True)
class Seen:
    """Mean and variance of each unit over calls, merged as Chan, Golub and LeVeque do (1979)."""

    rows: int
    fewest: int
    mean: torch.Tensor
    squares: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor, axis: int) -> Seen:
        """What one call shows."""
        numbers = numbers.detach()  # a forward may differentiate, and what it gave is changed
        units = numbers.shape[axis]
        rows = numbers.numel() // units
        if rows == 1:
            mean = numbers.reshape(units).double()
            return cls(1, 1, mean, torch.zeros_like(mean))
        others = [n for n in range(numbers.dim()) if n != axis % numbers.dim()]
        wide = numbers.float() if numbers.dtype.itemsize < 4 else numbers
        variance, mean = torch.var_mean(wide, dim=others, correction=0)
        return cls(rows, rows, mean.double(), rows * variance.double())

    def with_(self, other: Seen) -> Seen:
        """What both show."""
        rows, off = self.rows + other.rows, other.mean - self.mean
        return Seen(
            rows,
            min(self.fewest, other.fewest),
            self.mean + off * (other.rows / rows),
            self.squares + other.squares + off.square() * (self.rows * other.rows / rows),
        )


@dataclass(slots=True, eq=False)
class Layer:
    """A product with a bias, and what is to become of its parameters."""

    bias: torch.Tensor
    weight: torch.Tensor | None
    may_gain: bool
    """Whether its weights may become larger: nothing else uses them."""
    stays: bool = False
    """Whether it is left as it is: something else uses its bias, too."""
    gain: float = 1.0
    shift: torch.Tensor | None = None
    """Taken off, by unit, after the gain."""
    seen: Seen | None = None
    """Since it was last decided what becomes of it."""
    times: int = 0
    """That it was used in this call."""
    repeats: bool = False
    """Whether it is used several times in a call."""
    quiet: float = QUIET
    """Deviation of its units under which its weights are to become larger."""

    @property
    def at_once(self) -> bool:
        """Whether what one call shows of it is enough."""
        return not self.repeats and self.seen is not None and self.seen.rows >= ROWS

    def wanted(self) -> tuple[float, torch.Tensor] | None:
        """Gain, and what is to be taken off after it, by what was seen; None where neither is."""
        seen = self.seen
        if self.stays or seen is None or seen.rows < ROWS:
            return None
        mean, deviation = seen.mean, (seen.squares / seen.rows).sqrt()
        alive = mean.isfinite() & deviation.isfinite() & (deviation > STILL * mean.abs())
        if not bool(alive.any()):
            return None
        off = alive & (mean.abs() > FAR * deviation)
        usual = float(deviation[alive].square().mean().sqrt())
        gain = 1.0
        if self.may_gain and not self.repeats and usual < self.quiet:
            # A power of two: nothing is rounded.
            gain = min(2.0 ** round(-math.log2(usual)), MOST_GAIN / self.gain)
        if gain == 1.0 and not bool(off.any()):
            return None
        shift = gain * torch.where(off, mean - NEAR * deviation * mean.sign(), 0.0)
        as_before = (gain - 1.0) * mean.nan_to_num(posinf=0.0, neginf=0.0)
        return gain, torch.where(alive, shift, as_before)

    def move(self, gain: float, shift: torch.Tensor) -> None:
        """Decide on that, after what was decided before."""
        self.gain *= gain
        self.shift = shift if self.shift is None else gain * self.shift + shift
        self.seen = None

    def settle(self, undo: contextlib.ExitStack) -> None:
        """Give the parameters what has been decided; `undo` takes it back."""
        if self.gain != 1.0 and self.weight is not None:
            self.weight.mul_(self.gain)
            undo.callback(self.weight.mul_, 1.0 / self.gain)
        if self.shift is not None:
            before = self.bias.detach().clone()
            self.bias.mul_(self.gain).sub_(self.shift.to(self.bias))
            undo.callback(self.bias.copy_, before)


def change(numbers: torch.Tensor, axis: int, gain: float, shift: torch.Tensor | None) -> None:
    """What a layer gave, as if its parameters were others."""
    if gain != 1.0:
        numbers.mul_(gain)
    if shift is not None:
        sides = [1] * numbers.dim()
        sides[axis] = -1
        numbers.sub_(shift.view(sides).to(numbers))
