"""Whether a timed answer is what the reference's runner gave to the same input.

Every timed answer is looked at, so what honest programs answer must be settled quickly: by a bound
on the largest single difference, or in the answer's own precision, before the full comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pike_hpc.evaluate.correctness import (
    TIES,
    UNEQUAL,
    LeafScale,
    are_scattered,
    compare,
    part_outside,
)
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_off import Kind, Off, named, off, worst
from pike_hpc.evaluate.judge_rows import OftenOff, Rows, rows_off
from pike_hpc.evaluate.layout import FLOATS, Slot
from pike_hpc.evaluate.pieces import stretches

PIKE_TOLERANCE, MAX_OUTSIDE = 1e-2, 0.01
"""Variant legacy: absolute and relative, and the part of a timed output that may miss it."""

SURE, SURELY_ABOVE = 0.98, 1e-30
"""Part of a limit that a quick look uses, which rounds; limits of squares below are not for it."""

ROUNDING = 1e-9
"""Of what floats make of a whole number of elements."""

SPAN = 1e15
"""Differences beyond have squares that float32 does not hold."""

NEAR_TIES = 8
"""How many whole numbers may differ in an answer where any move with the input, in an exam or while
timed: a near tie swaps two of what `topk` gives, and an order of 2,048 scores may have several."""

SAME_PLACE, SAME_PART = 2, 0.02
"""No stretch of whole numbers differs in more than so many calls and such a part of all of them:
near ties are anywhere, a row that is left out once a program is timed is always there."""

ANYWHERE = 0.1
"""The part of all calls in which whole numbers may differ at any place, beside SAME_PLACE calls and
TIES of all for each number that moves. What differs more often is a mistake. Nothing is gained in
such calls (`judge_unequal`)."""

NEAR_MISS = 3.0
"""Times what it may be off by that an answer is when the reference's own error may explain it: in a
call the reference can be further from the truth than in any of the exam's, as a deep LSTM under
cuDNN's TF32 was in one of 32, and a program that is exact misses it by as much."""

AT_ONCE_BYTES = 1 << 29
"""Answers beyond are compared in pieces only."""

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Answer and reference of each output of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a timed answer may be from the reference runner's, per output leaf."""

    scales: tuple[LeafScale, ...]
    limits: tuple[float, ...]
    local: tuple[float, ...]
    """For stretches."""
    usual: tuple[float, ...]
    """What most answers must be within, for the candidate to keep its tier."""
    pike: bool
    """PIKE's rule instead, for all but a small part of the elements: it saw one input, we many."""
    looser: Tolerance | None = None
    """Of the next tier: what is within that alone costs the tier, and no more."""
    chooses: bool = False
    """Whether the reference chooses: few rows may be off then, in few calls (`judge_rows`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Of calls whose answers agree, how finely they do."""

    calls: int = 0
    coarse: int = 0
    """Further off than most may be."""
    looser: int = 0
    """Allowed by the next tier alone. One of them costs the tier, and no more: where a number is
    rounded, a program that is right in its way may have the other one in a call of a hundred."""
    furthest: Off | None = None
    """Of the coarse ones, beside what most must be within."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            calls=self.calls + other.calls,
            coarse=self.coarse + other.coarse,
            looser=self.looser + other.looser,
            furthest=worst(o for o in (self.furthest, other.furthest) if o is not None),
        )

    @property
    def part(self) -> float:
        """The part of the calls that are coarse."""
        return self.coarse / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the answers of a window look like, where they agree."""

    tally: Tally
    equal: bool
    """Whether each call has the reference's whole numbers and no row that only a near tie explains;
    always in `legacy`."""


@dataclass(frozen=True, slots=True)
class Miss:
    """The first call of a window that is not what the reference's runner gave."""

    call: int
    how: str
    """By how much, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Broken:
    """How a call's answer is not what the reference's runner gave."""

    how: str
    near: bool = False
    """Whether only floating outputs are off, by no more than NEAR_MISS: float64 can tell whose
    error that is."""
    costs_tier: bool = False
    """Whether the next tier allows it."""


class Agreement:
    """Compares answers as raw bytes."""

    def __init__(self, tolerance: Tolerance, slots: tuple[Slot, ...]) -> None:
        self._tolerance, self._slots = tolerance, slots
        known = zip(tolerance.scales, tolerance.usual, tolerance.local, strict=True)
        self._quick = [] if tolerance.pike else [Quick(*leaf) for leaf in known]
        self._seen = self._unequal = 0
        self._rows = OftenOff()
        self._hits: dict[int, torch.Tensor] = {}
        """By whole-number output, in how many calls each stretch differed."""
        leaves = zip(slots, tolerance.scales, strict=True)
        moving = sum(scale.moves * slot.count for slot, scale in leaves if slot.dtype not in FLOATS)
        self._unequal_part = ANYWHERE + TIES * moving

    def look(
        self,
        answers: torch.Tensor,
        references: torch.Tensor,
        doubt: Callable[[int], bool] = lambda call: False,
    ) -> Seen | Miss:
        """At all answers of a window, (calls, bytes) uint8 each.

        `doubt` is told which call misses by little enough for the reference to be what is off, and
        says whether that will be found out; then the call agrees for now.
        """
        self._seen += len(answers)
        if torch.equal(answers, references):
            return Seen(tally=Tally(calls=len(answers)), equal=True)
        tally, fits = Tally(calls=len(answers)), True
        if answers.numel() > AT_ONCE_BYTES or not self._surely(answers, references):
            tally = Tally()
            for call, pair in enumerate(zip(answers, references, strict=True)):
                found = self._looked_at(*pair)
                if isinstance(found, Broken):
                    doubted = found.near and doubt(call)
                    if not (doubted or found.costs_tier):
                        return Miss(call, found.how)
                    found = Seen(tally=Tally(calls=1, looser=int(not doubted)), equal=True)
                tally, fits = tally + found.tally, fits and found.equal
        return Seen(tally=tally, equal=fits and self._same(answers, references))

    def begin(self) -> None:
        """Forget what near ties made of the calls so far: that was a rehearsal."""
        self._seen = self._unequal = 0
        self._rows.begin()
        self._hits.clear()

    def _same(self, answers: torch.Tensor, references: torch.Tensor) -> bool:
        return self._tolerance.pike or all(
            torch.equal(_across(slot, answers), _across(slot, references))
            for slot in self._slots
            if slot.dtype not in FLOATS
        )

    def _surely(self, answers: torch.Tensor, references: torch.Tensor) -> bool:
        """Whether every call certainly agrees as most must; False says nothing."""
        if self._tolerance.pike:
            return False
        for slot, quick in zip(self._slots, self._quick, strict=True):
            a, r = (_across(slot, rows) for rows in (answers, references))
            if not (quick.sure(a - r) if slot.dtype in FLOATS else torch.equal(a, r)):
                return False
        return True

    def _looked_at(self, answer: torch.Tensor, reference: torch.Tensor) -> Seen | Broken:
        """At one call's outputs as bytes.

        It is unequal here where rows are off.
        """
        both = list(zip(*(views(self._slots, raw) for raw in (answer, reference)), strict=True))
        if self._tolerance.pike:
            outside = worst(outside_pike(both))
            return Broken(str(outside)) if outside else Seen(tally=Tally(calls=1), equal=True)
        if often := self._differ_often(both):
            return Broken(often)
        found = beside(both, self._tolerance)
        if (broken := worst(found)) is None:
            usual = zip(found, self._tolerance.usual, strict=True)
            furthest = worst(replace(o, limit=most) for o, most in usual)
            tally = Tally(calls=1, coarse=int(furthest is not None), furthest=furthest)
            return Seen(tally=tally, equal=True)
        rows = self._rows_off(both, found)
        often = self._rows.more_often(rows, self._seen) if rows else ""
        if rows and not often:
            return Seen(tally=Tally(calls=1), equal=False)
        near = broken.times <= NEAR_MISS and all(o.fits or o.kind.floating for o in found)
        looser = self._tolerance.looser
        if looser is not None:
            broken = worst(beside(both, looser))
        how = often or str(broken)
        return Broken(how, near=near and not often, costs_tier=broken is None)

    def _rows_off(self, both: Pairs, found: Sequence[Off]) -> list[tuple[int, Rows]]:
        """Of each output that is off, the rows that are; none where near ties do not explain it."""
        rows = []
        for leaf, (answer, reference) in enumerate(both):
            if found[leaf].fits:
                continue
            these = self._rows_of(leaf, answer, reference)
            if these is None:
                return []
            rows.append((leaf, these))
        return rows

    def _rows_of(self, leaf: int, answer: torch.Tensor, reference: torch.Tensor) -> Rows | None:
        known = self._tolerance
        if not known.chooses or self._slots[leaf].dtype not in FLOATS:
            return None
        scale, limit, local = known.scales[leaf], known.limits[leaf], known.local[leaf]
        return rows_off(
            answer,
            reference,
            scale.signal,
            lambda mended: off_by(mended, reference, scale, limit, local).fits,
        )

    def _differ_often(self, both: Pairs) -> str:
        """How whole numbers differ in many calls, or at one place again and again; empty if not."""
        equal, most = True, 0
        for leaf, (answer, reference) in enumerate(both):
            if self._slots[leaf].dtype in FLOATS or torch.equal(answer, reference):
                continue
            hit = stretches_with(answer != reference).int()
            hits = self._hits[leaf] = self._hits[leaf] + hit if leaf in self._hits else hit
            equal, most = False, max(most, int(hits.max()))
        self._unequal += not equal
        counts = {
            " at one place": (most, SAME_PLACE + SAME_PART * self._seen),
            "": (self._unequal, SAME_PLACE + self._unequal_part * self._seen),
        }
        for where, (count, end) in counts.items():
            if count > end:
                return (
                    f"whole numbers differ{where} in {count} of {self._seen} calls, and {int(end)} "
                    "may"
                )
        return ""


def beside(both: Pairs, tolerance: Tolerance) -> list[Off]:
    """What the outputs of a call are off by."""
    known = zip(both, tolerance.scales, tolerance.limits, tolerance.local, strict=True)
    return [
        replace(off_by(*pair, scale, limit, local), output=named(number, len(both)))
        for number, (pair, scale, limit, local) in enumerate(known)
    ]


def outside_pike(both: Pairs) -> Iterator[Off]:
    """By which part the outputs of a call miss PIKE's rule."""
    for number, pair in enumerate(both):
        part, output = part_outside(*pair, PIKE_TOLERANCE), named(number, len(both))
        yield Off(error=part, limit=MAX_OUTSIDE, kind=Kind.PIKE, output=output)


def off_by(
    answer: torch.Tensor, reference: torch.Tensor, scale: LeafScale, limit: float, local: float
) -> Off:
    """What a timed answer is off from the reference's, in signals, or in what they have grown to.

    By a stretch where one is off by more than `local`, by whole numbers where more differ than
    `UNEQUAL` and `NEAR_TIES` allow; by nothing where no more of them do.
    """
    if not answer.is_floating_point() and not answer.is_complex():
        moving = round(scale.moves * answer.numel())
        most = max(math.floor(UNEQUAL * moving + ROUNDING), NEAR_TIES * (moving > 0))
        different = answer != reference
        count = int(different.sum())
        if count > most:
            return Off(error=count, limit=most, kind=Kind.NUMBERS)
        if count and not are_scattered(different):
            return Off(error=count, limit=0.0, kind=Kind.NEIGHBOURS)
        return Off(error=0.0, limit=limit)
    found = compare(answer, reference, scale.signal, scale.grain)
    return off(found.error / scale.grown(found.size), limit, found.local, local)


class Quick:
    """A look at one output's errors that never accepts what the full comparison refuses."""

    def __init__(self, scale: LeafScale, bound: float, local: float) -> None:
        """Limits as of `off_by`, and what most answers must be within."""
        signal, grain = scale.signal, scale.grain
        self._whole = SURE * bound * signal
        self._single = SURE * local * signal
        self._stretches: torch.Tensor | None = None
        self._by_index: list[torch.Tensor] = []
        if grain is not None:
            self._indices = grain.indices
            self._stretches = _squared(grain.least, local)
            self._by_index = [_squared(floors, local) for floors in grain.by_index]

    def sure(self, off: torch.Tensor) -> bool:
        """Whether the differences (calls, numbers) are certainly small enough; False says nothing.

        No root of a mean square exceeds the largest of its parts.
        """
        if not off.numel():
            return True
        low, high = off.aminmax()
        largest = max(float(high), -float(low))
        if not largest <= SPAN:  # a NaN is not below anything
            return False
        if self._stretches is None:
            return largest <= min(self._whole, self._single)
        squares = (off if off.dtype == torch.float64 else off.float()).square()
        fine = (squares.mean(dim=1) <= self._whole * self._whole).all()
        fine &= (stretches(squares) <= self._stretches.to(off.device)).all()
        if self._by_index:
            means = self._indices.means(self._indices.sums(squares))
            for mean, most in zip(means, self._by_index, strict=True):
                fine &= (mean <= most.to(off.device)).all()
        return bool(fine)


def stretches_with(different: torch.Tensor) -> torch.Tensor:
    """Whether each stretch of LOCAL_ELEMENTS holds a difference."""
    return stretches(different.reshape(-1)) > 0


def _squared(floors: torch.Tensor, local: float) -> torch.Tensor:
    """The largest sums of squares that are sure; -1 where float32 has no such numbers."""
    limits = floors.double() * (SURE * local) ** 2
    return limits.masked_fill(limits < SURELY_ABOVE, -1.0).to(torch.float32)


def _across(slot: Slot, rows: torch.Tensor) -> torch.Tensor:
    """One output of all calls: (calls, numbers), complex ones as pairs."""
    part = rows[:, slot.offset : slot.offset + slot.size_bytes]
    dtype = getattr(torch, slot.dtype)
    return part.view(dtype.to_real() if dtype.is_complex else dtype)
