"""Whether a timed answer is what the reference's runner gave to the same input.

Every timed answer is looked at, so what honest programs answer must be settled quickly: a bound on
the largest single difference, from which all else follows, before the full comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.correctness import (
    LOCAL_ELEMENTS,
    UNEQUAL,
    LeafScale,
    compare,
    part_outside,
    unequal,
)
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.layout import FLOATS, Slot

PIKE_TOLERANCE, MAX_OUTSIDE = 1e-2, 0.01
"""Variant legacy: absolute and relative, and the part of a timed output that may miss it."""

SURE = 0.98
"""Of the largest harmless difference: half types round what is left of a subtraction."""

AT_ONCE_BYTES = 1 << 30
"""Answers beyond are compared in pieces only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a timed answer may be from the reference runner's, per output leaf."""

    scales: tuple[LeafScale, ...]
    limits: tuple[float, ...]
    local: tuple[float, ...]
    """For stretches."""
    pike: bool
    """PIKE's rule instead, for all but a small part of the elements: it saw one input, we many."""


class Agreement:
    """Compares answers as raw bytes."""

    def __init__(self, tolerance: Tolerance, slots: tuple[Slot, ...]) -> None:
        self._tolerance, self._slots = tolerance, slots
        leaves = zip(tolerance.scales, tolerance.limits, tolerance.local, strict=True)
        self._harmless = [0.0 if tolerance.pike else harmless(*leaf) for leaf in leaves]

    def holds(self, answers: torch.Tensor, references: torch.Tensor) -> bool:
        """Whether all answers of a window agree: (calls, bytes) uint8 each."""
        if torch.equal(answers, references):
            return True
        if answers.numel() <= AT_ONCE_BYTES and self._surely(answers, references):
            return True
        return all(self._good(a, r) for a, r in zip(answers, references, strict=True))

    def _surely(self, answers: torch.Tensor, references: torch.Tensor) -> bool:
        """Whether no element of any call is far enough off to matter; False says nothing."""
        for slot, most in zip(self._slots, self._harmless, strict=True):
            if not slot.count:
                continue
            a, r = (_across(slot, rows) for rows in (answers, references))
            if slot.dtype not in FLOATS:
                if not torch.equal(a, r):
                    return False
                continue
            low, high = (a - r).aminmax()
            if not (float(high) <= most and -float(low) <= most):  # a NaN is not below anything
                return False
        return True

    def _good(self, answer: torch.Tensor, reference: torch.Tensor) -> bool:
        """Whether the bytes of one call's outputs are what the reference's runner gave."""
        leaves = zip(
            views(self._slots, answer),
            views(self._slots, reference),
            self._tolerance.scales,
            self._tolerance.limits,
            self._tolerance.local,
            strict=True,
        )
        if self._tolerance.pike:
            return all(part_outside(a, r, PIKE_TOLERANCE) <= MAX_OUTSIDE for a, r, *_ in leaves)
        return all(agrees(*leaf) for leaf in leaves)


def agrees(
    answer: torch.Tensor, reference: torch.Tensor, scale: LeafScale, bound: float, local: float
) -> bool:
    """Whether a timed answer is the reference's, within `bound` signals, stretches in `local`."""
    if not answer.is_floating_point() and not answer.is_complex():
        return unequal(answer, reference) <= UNEQUAL
    found = compare(answer, reference, scale.signal, scale.grain)
    return found.error <= bound and found.local <= local


def harmless(scale: LeafScale, bound: float, local: float) -> float:
    """If no element is off by more than this, `agrees` holds: no RMS exceeds the largest error."""
    if scale.signal <= 0.0:
        return 0.0
    stretch = column = scale.signal
    if scale.grain is not None:
        stretch = math.sqrt(float(scale.grain.least.min()) / LOCAL_ELEMENTS)
        if scale.grain.columns is not None:
            column = math.sqrt(float(scale.grain.columns.min()))
    return SURE * min(bound * scale.signal, local * min(stretch, column))


def _across(slot: Slot, rows: torch.Tensor) -> torch.Tensor:
    """One output of all calls: (calls, numbers), complex ones as pairs."""
    part = rows[:, slot.offset : slot.offset + slot.size_bytes]
    dtype = getattr(torch, slot.dtype)
    return part.view(dtype.to_real() if dtype.is_complex else dtype)
