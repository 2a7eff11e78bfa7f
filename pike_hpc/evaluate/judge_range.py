"""Inputs beyond a task's own: does a candidate answer them as the reference does?

Larger ones: a softmax that subtracts no maximum and a square in half precision overflow where no
exam looks. Smaller ones: what only large numbers hide comes to light. Coarse ones, of which many
are alike. Ones with another mean, ones of which few are large, in the range that the task's have,
and ones that are large in few slices: what is true of some of them is then not true of all. And
others in the place of what is the same in every draw, a time step or a mask: who never reads it, or
keeps what came of it, is right in every exam. Tried only where the reference is right there itself,
and never a reason to refuse: a task's inputs are what it is judged on, so what comes of this is a
tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pike_hpc.evaluate.correctness import FLOORS, ROUNDING, compare
from pike_hpc.evaluate.judge_arithmetic import Rounded, Unchosen
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_moves import (
    NUDGES,
    InputKind,
    Move,
    banded,
    coarser,
    kinds_of,
    larger,
    nudged,
    otherwise,
    peaked,
    shifted,
    smaller,
)
from pike_hpc.evaluate.judge_operations import ASSERTED, Operations, bare
from pike_hpc.evaluate.judge_signal import Leaves, Signal, scale
from pike_hpc.evaluate.judge_truth import KEPT_BYTES, Truth
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.records import Tier

GROSS, RIGHT = 0.1, 0.01
"""Errors over the signal there: from when on an answer is wrong, whatever its precision, and up to
when the reference counts as right."""

FINE_K = 10.0
"""At tier fp32 an answer to smaller, shifted, peaked or banded inputs is wrong from so many times
on where that tier ends."""
FINE_NOISE_K = 100.0
"""And from so many times on what the reference itself is off by there, or its last digits are."""

TOLD = 0.06
"""A constant that moves an answer less tells nobody: three times where the loosest tier ends."""

_CHECKED = (
    *("index", "gather", "scatter", "embedding", "take", "put", "loss", "cross_entropy"),
    *("bernoulli", "multinomial", "bincount", "assert"),
)
"""Parts of names of operations that end a GPU's process where a number is out of their range."""

_STRICT = ("assert", "bernoulli", "multinomial", "loss", "cross_entropy")
"""Those where the least step beyond may do so: not where a place is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Right:
    """What is right for one input."""

    answer: list[torch.Tensor]
    signals: tuple[float, ...]

    def off(self, answer: Leaves, leaf: int) -> float:
        """Error of one output of another answer, over the signal."""
        return compare(answer[leaf], self.answer[leaf], self.signals[leaf]).error

    def is_near(self, answer: Leaves, bounds: Mapping[int, float]) -> bool:
        """Whether another answer is within these bounds, by leaf."""
        errors = ((self.off(answer, i), end) for i, end in bounds.items())
        return all(math.isfinite(error) and error <= end for error, end in errors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """One input beyond the task's own."""

    name: str
    packed: torch.Tensor
    right: Right
    bounds: Mapping[int, float]
    """By output leaf that is looked at: errors over the signal from which on it is wrong."""
    fine: Mapping[int, float]
    """The same at tier fp32."""
    coarse_too: bool
    """Whether the reference is right as well where its numbers have 16 bits."""

    def grossly_wrong(self, answer: Leaves, tier: Tier | None) -> bool:
        """Whether an answer of this tier is not finite there, or far from the truth."""
        return not self.right.is_near(answer, self.fine if tier is Tier.FP32 else self.bounds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WideRange:
    """What is asked of candidates beyond the task's own inputs."""

    looks: tuple[Look, ...]

    def asked_of(self, tier: Tier | None) -> tuple[Look, ...]:
        """Where a program of this tier can be right."""
        return tuple(look for look in self.looks if look.coarse_too or tier is Tier.FP32)


def wide_range(truth: Truth, signal: Signal) -> WideRange | None:
    """What is asked of candidates beyond the task's own inputs; None where nothing can be.

    Args:
        truth: of an admitted task.
        signal: of the same.
    """
    if truth.legacy or not signal.cheap:
        return None
    slots = (*truth.frame.input_slots, *truth.frame.output_slots)
    # A device holds them twice as wide, as long as the task is warm.
    most = max(1, min(len(_PLANS), KEPT_BYTES // max(1, 2 * buffer_bytes(slots))))
    looks: list[Look] = []
    try:
        if _runs(truth, truth.range_seeds[0], _CHECKED):
            return None
        for plan, move in _moves(truth):
            if len(looks) < most and (look := _look(truth, signal, plan, move)):
                looks.append(look)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no such mode
        return None
    return WideRange(looks=tuple(looks)) if looks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Of a look."""

    name: str
    move: Callable[[Sequence[InputKind]], Move | None]
    told: bool = False
    """Whether it counts only where it moves the answer."""
    fine: bool = False
    """Whether tier fp32 is held to what it is."""
    ties: bool = False
    formats: tuple[torch.dtype, ...] = (torch.bfloat16,)
    """Those of 16 bits that may be too coarse there: of large numbers float16 has too few, and who
    uses it is told so."""


_FORMATS = (torch.bfloat16, torch.float16)
_PLANS = (
    _Plan(name="larger", move=larger),
    _Plan(name="otherwise", move=otherwise, told=True),
    _Plan(name="smaller", move=smaller, fine=True, formats=_FORMATS),
    _Plan(name="coarser", move=coarser, ties=True, formats=_FORMATS),
    _Plan(name="shifted", move=shifted, fine=True, formats=_FORMATS),
    _Plan(name="peaked", move=peaked, fine=True, formats=_FORMATS),
    _Plan(name="banded", move=banded, fine=True, formats=_FORMATS),
)


def _moves(truth: Truth) -> list[tuple[_Plan, Move]]:
    """What tells most first: of large tasks no more is asked."""
    draws = (views(truth.frame.input_slots, truth.pack(seed)) for seed in truth.range_seeds)
    kinds = kinds_of(*draws)
    constants_first = not all(kind.both_signs for kind in kinds)
    plans = sorted(_PLANS, key=lambda plan: constants_first and not plan.told)
    return [(plan, move) for plan in plans if (move := plan.move(kinds))]


def _look(truth: Truth, signal: Signal, plan: _Plan, move: Move) -> Look | None:
    """What is right for these inputs; None where the reference tells nothing there."""
    first, second = truth.range_seeds
    try:
        plain = truth.natively(first) if plan.told else []
        packed = _packed(truth, first, move)
        answer = [truth.keep(t) for t in truth.answers_to(packed)]
        native = _natively(truth, packed)
        other = [truth.keep(t) for t in _natively(truth, _packed(truth, second, move))]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no such numbers
        return None
    if not all(bool(t.isfinite().all()) for call in (answer, other) for t in call):
        return None
    pairs = zip(answer, other, strict=True)
    right = Right(answer=answer, signals=tuple(scale(truth.paired(pair)) for pair in pairs))
    bounds = dict.fromkeys(signal.floats, GROSS)
    if plan.told:  # who keeps what came of a constant answers as if it had not moved
        off = {i: right.off(plain, i) for i in signal.floats}
        bounds = {i: min(GROSS, error / 2) for i, error in off.items() if error >= TOLD}
    if not bounds or not right.is_near(native, dict.fromkeys(bounds, RIGHT)):
        return None
    if plan.ties and not _right_of_ties(truth, move, right, bounds):
        return None
    coarse = {i: end / 2 for i, end in bounds.items()}
    return Look(
        name=plan.name,
        packed=packed,
        right=right,
        bounds=bounds,
        fine=_fine(native, right, bounds) if plan.fine else bounds,
        coarse_too=all(_right_in(to, truth, packed, right, coarse) for to in plan.formats),
    )


def _fine(native: Leaves, right: Right, bounds: Mapping[int, float]) -> dict[int, float]:
    """Ends of what tier fp32 may be off by, where only that is asked for."""
    ends = {}
    for i, end in bounds.items():
        found = compare(native[i], right.answer[i], right.signals[i])
        last_digit = 2 * ROUNDING * found.size / right.signals[i]
        noise = max(found.error, last_digit)
        ends[i] = min(end, max(FINE_K * FLOORS[Tier.FP32], FINE_NOISE_K * noise))
    return ends


def _right_of_ties(truth: Truth, move: Move, right: Right, bounds: Mapping[int, float]) -> bool:
    """Whether one answer alone is right where inputs are alike: not where any of them is chosen.

    Nor where all of them are rounded, and their last digit says which way.
    """
    seed, ends = truth.range_seeds[0], dict.fromkeys(bounds, RIGHT)
    try:
        packed = _packed(truth, seed, move)
        with Unchosen():
            answers = [_natively(truth, packed)]
        for by in NUDGES:
            answers.append(_natively(truth, _packed(truth, seed, nudged(move, by))))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that needs to know its choices
        return False
    return all(right.is_near(answer, ends) for answer in answers)


def _right_in(
    to: torch.dtype,
    truth: Truth,
    packed: torch.Tensor,
    right: Right,
    bounds: Mapping[int, float],
) -> bool:
    """Whether the reference is right where all its numbers are rounded to a format.

    With bfloat16's own products and weights; those in float16 a CPU takes long for.
    """
    own = to is torch.bfloat16
    try:
        with torch.autocast(truth.device.type, torch.bfloat16, enabled=own), Rounded(to):
            answer = _natively(truth, packed)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no such format
        return False
    return right.is_near(answer, bounds)


def _packed(truth: Truth, seed: int, move: Move) -> torch.Tensor:
    packed = truth.pack(seed)
    for number, view in enumerate(views(truth.frame.input_slots, packed)):
        view.copy_(move(number, view))
    return packed


def _natively(truth: Truth, packed: torch.Tensor) -> list[torch.Tensor]:
    return truth.answers_to(packed, natively=True)


class _Names(Operations):  # type: ignore[no-untyped-call]
    """Notes which operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


def checks_strictly(truth: Truth, seed: int) -> bool:
    """Whether inputs a little off those of `seed` may end this process, if it has a GPU."""
    found = _runs(truth, seed, _STRICT)
    truth.forget_inputs()
    return found


def asserts(truth: Truth, seed: int) -> bool:
    """Whether a layer left out may end this process, if it has a GPU: a sigmoid before a loss."""
    return not ASSERTED.isdisjoint(_names(truth, seed))


def _runs(truth: Truth, seed: int, parts: Sequence[str]) -> bool:
    names = {bare(name) for name in _names(truth, seed)}  # an overload may be called input
    return any(part in name for name in names for part in parts)


def _names(truth: Truth, seed: int) -> set[str]:
    with _Names() as run:
        truth.natively(seed)
    return run.seen
