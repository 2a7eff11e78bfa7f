"""Wrong versions of a call that must fail: a part of its input is never read.

A recurrent layer forgets: under fresh weights the last answer of hundreds of steps is made of the
last thirty, and who leaves out the others is right to the last digit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_range import checks_strictly
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS, Leaves, alike
from pike_hpc.evaluate.judge_truth import Truth
from pike_hpc.evaluate.layout import Slot

UNREAD = "input_unread"
LEAST_SIZE = 8
"""Shorter dimensions are not cut: a quarter of them is little to save."""
LARGEST = 1 << 24
"""Numbers of an input or an answer beyond which nothing is tried: no sequence is so long, and each
try would take seconds."""
CUT, NEXT_CUT = 4, 8
"""What part is left unread; and of what is left, where that changes nothing at all."""

Answering = Callable[[int], Leaves]
"""The answer where so many indices of a dimension are another input's."""


def unread(truth: Truth, first: Leaves) -> Iterator[tuple[str, Leaves]]:
    """Answers to the first admission input with a part of its largest tensor from the second one.

    From either end of each dimension. Where a quarter changes nothing it may be there for nothing,
    such as what a mask hides: then the rest that matters is cut by an eighth. What fades comes
    through that unnoticed, what is hidden does not.

    Args:
        truth: of the task.
        first: the reference's own answer to the first input.

    Yields:
        What was left unread, for a person, and the answer.
    """
    slots: Sequence[Slot] = truth.frame.input_slots
    if not slots or max(slot.count for slot in (*slots, *truth.frame.output_slots)) > LARGEST:
        return
    if truth.device.type == "cuda" and checks_strictly(truth, ADMISSION_SEEDS[0]):
        return  # one that fails would end this process
    leaf = max(range(len(slots)), key=lambda i: slots[i].count)
    one, other = (truth.pack(seed) for seed in ADMISSION_SEEDS)

    def mixed(dim: int, last: bool, count: int) -> Leaves:
        packed = one.clone()
        size = slots[leaf].shape[dim]
        into, by = (views(slots, raw)[leaf] for raw in (packed, other))
        part = dim, size - count if last else 0, count
        into.narrow(*part).copy_(by.narrow(*part))
        return truth.answers_to(packed, natively=True)

    for dim, size in enumerate(slots[leaf].shape):
        for last in (False, True) if size >= LEAST_SIZE else ():
            found = _tried(size, functools.partial(mixed, dim, last), first)
            if found is not None:
                end = "last" if last else "first"
                yield f"the {end} {found[0]} of {size} in dimension {dim} unread", found[1]


def _tried(size: int, answer: Answering, first: Leaves) -> tuple[int, Leaves] | None:
    try:
        return _cut(size, answer, first)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a forward does that knows inputs of one piece only
        return None


def _cut(size: int, answer: Answering, first: Leaves) -> tuple[int, Leaves] | None:
    """How many indices were cut, and the answer; None where the whole tensor changes nothing."""
    count = size // CUT
    found = answer(count)
    if not alike(found, first):
        return count, found
    if alike(answer(size), first):
        return None
    low, high = count, size  # so many change nothing, so many do
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if alike(answer(middle), first) else (low, middle)
    count = low + max(1, (size - low) // NEXT_CUT)
    return count, answer(count)
