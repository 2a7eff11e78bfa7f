"""Inputs much larger than a task's own: does a candidate answer them as the reference does?

A softmax that subtracts no maximum and a square in half precision overflow where no exam looks.
Tried only where the reference is right there itself, and never a reason to refuse: a task's inputs
are what it is judged on, so what comes of this is a tag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pike_hpc.evaluate.correctness import compare
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_signal import Leaves, Signal, scale
from pike_hpc.evaluate.judge_truth import Truth

FACTOR = 64.0
"""A power of two, so that scaling rounds nothing; exp overflows for most models that use it."""

GROSS, RIGHT = 0.1, 0.01
"""Errors over the signal there: from when on an answer is wrong, whatever its precision, and up to
when the reference counts as right."""

_CHECKED = (
    *("index", "gather", "scatter", "embedding", "take", "put", "loss", "cross_entropy"),
    *("bernoulli", "multinomial", "bincount", "assert"),
)
"""Parts of names of operations that end a GPU's process where a number is out of their range."""

_STRICT = ("assert", "bernoulli", "multinomial", "loss", "cross_entropy")
"""Those where the least step beyond may do so: not where a place is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WideRange:
    """One large input, and what is right there."""

    packed: torch.Tensor
    truth: list[torch.Tensor]
    signals: tuple[float, ...]
    floats: tuple[int, ...]
    """Output leaves that are looked at."""
    coarse_too: bool
    """Whether the reference under bfloat16 autocast is right as well."""

    def grossly_wrong(self, answer: Sequence[torch.Tensor]) -> bool:
        """Whether an answer to this input is not finite, or far from the truth."""
        return not _within(GROSS, answer, self.truth, self.signals, self.floats)


def wide_range(truth: Truth, signal: Signal) -> WideRange | None:
    """What is asked of candidates beyond the task's own inputs; None where nothing can be.

    Args:
        truth: of an admitted task.
        signal: of the same.
    """
    first, second = truth.range_seeds
    if truth.legacy or not signal.cheap or not _may_be_scaled(truth, first):
        return None
    try:
        with truth.scaled(FACTOR):
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
    floats = tuple(signal.floats)
    if not floats or not _within(RIGHT, native, wide[0], signals, floats):
        return None
    packed = truth.pack(first)
    for view in views(truth.frame.input_slots, packed):
        view.mul_(FACTOR)
    return WideRange(
        packed=packed,
        truth=wide[0],
        signals=signals,
        floats=floats,
        coarse_too=half is not None and _within(RIGHT * 3, half, wide[0], signals, floats),
    )


def _within(
    bound: float, answer: Leaves, truth: Leaves, signals: Sequence[float], floats: Sequence[int]
) -> bool:
    errors = (compare(answer[i], truth[i], signals[i]).error for i in floats)
    return all(math.isfinite(error) and error <= bound for error in errors)


def _half(truth: Truth, seed: int) -> list[torch.Tensor] | None:
    try:
        with torch.autocast(truth.device.type, dtype=torch.bfloat16):
            return truth.natively(seed)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no bfloat16
        return None


class _Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operations run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


def _may_be_scaled(truth: Truth, seed: int) -> bool:
    """Whether larger inputs mean something: numbers of both signs, and nothing that checks them."""
    inputs = views(truth.frame.input_slots, truth.pack(seed))
    if not all(t.is_floating_point() and bool((t < 0).any() & (t > 0).any()) for t in inputs):
        return False
    return not _runs(truth, seed, _CHECKED)


def checks_strictly(truth: Truth, seed: int) -> bool:
    """Whether inputs a little off those of `seed` may end this process, if it has a GPU."""
    found = _runs(truth, seed, _STRICT)
    truth.forget_inputs()
    return found


def _runs(truth: Truth, seed: int, parts: Sequence[str]) -> bool:
    with _Names() as run:
        truth.natively(seed)
    return any(part in name for name in run.seen for part in parts)
