"""Wrong versions of a call that must fail: a part of its input is never read.

A recurrent layer forgets: under fresh weights the last answer of hundreds of steps is made of the
last thirty, and who leaves out the others is right to the last digit. Where it reads in both
directions it is made of the first and the last thirty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

import torch

from pike_hpc.evaluate.judge_faint import faint, is_affordable
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_range import checks_strictly
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS, Leaves, alike, own_s
from pike_hpc.evaluate.judge_truth import FLOAT64, Truth
from pike_hpc.evaluate.layout import Slot

UNREAD = "input_unread"
LEAST_SIZE = 8
"""Shorter dimensions are not cut: a quarter of them is little to save."""
LARGE = 1 / 4
"""Of the largest input: smaller ones are not cut either. What hangs on them may be faint and cheap,
such as covariates beside a history, and a task should not lose a tier for that."""
LARGEST_INPUT, LARGEST_ANSWER = 1 << 26, 1 << 24
"""Numbers beyond which nothing is tried: each try would take seconds."""
BUDGET_S = 20.0
"""Of our own, after which no further dimension is begun: slow references on a CPU have many."""
CUT, NEXT_CUT = 4, 8
"""What part is left unread; and of what is left, where that changes nothing at all."""


class Part(StrEnum):
    """Where a dimension is cut."""

    FIRST, MIDDLE, LAST = "first", "middle", "last"

    def start(self, size: int, count: int) -> int:
        """Of `size` indices, the first of the `count` that are left unread."""
        room = size - count
        return {Part.FIRST: 0, Part.MIDDLE: room // 2, Part.LAST: room}[self]


T = TypeVar("T")

Answering = Callable[[int], Leaves]
"""The answer where so many indices of a dimension are another input's."""


def unread(
    truth: Truth,
    first: Leaves,
    clock: Callable[[], float] = own_s,
    *,
    thorough: bool = True,
) -> Iterator[tuple[str, Leaves]]:
    """Answers to the first admission input with a part of it from the second one.

    From either end of each dimension of each large tensor, and from its middle. Where a quarter
    changes nothing it may be there for nothing, such as what a mask hides: then the rest that
    matters is cut by an eighth. What fades comes through that unnoticed, what is hidden does not.
    Then what a gradient shows to be all but forgotten, wherever it lies.

    Args:
        truth: of the task.
        first: the reference's own answer to the first input.
        clock: seconds of our own.
        thorough: ask for a gradient, too: a call takes little time.

    Yields:
        What was left unread, for a person, and the answer.
    """
    slots: Sequence[Slot] = truth.frame.input_slots
    answers = truth.frame.output_slots
    if not slots or max(slot.count for slot in slots) > LARGEST_INPUT:
        return
    if max(slot.count for slot in answers) > LARGEST_ANSWER:
        return
    if truth.device.type == "cuda" and checks_strictly(truth, ADMISSION_SEEDS[0]):
        return  # one that fails would end this process
    one, other = (truth.pack(seed) for seed in ADMISSION_SEEDS)

    def mixed(leaf: int, dim: int, part: Part, count: int) -> Leaves:
        packed = one.clone()
        into, by = (views(slots, raw)[leaf] for raw in (packed, other))
        cut = dim, part.start(slots[leaf].shape[dim], count), count
        into.narrow(*cut).copy_(by.narrow(*cut))
        return truth.answers_to(packed, natively=True)

    end_s = clock() + BUDGET_S
    for leaf, dim, part in cuts(slots, views(slots, one)):
        if clock() > end_s:
            return
        size = slots[leaf].shape[dim]
        answer = functools.partial(mixed, leaf, dim, part)
        found = _tried(functools.partial(_cut, size, answer, first))
        if found is not None:
            yield f"the {part} {found[0]} of {size} in dimension {dim} unread", found[1]
    if thorough and not truth.large and truth.precision == FLOAT64 and is_affordable(truth.device):
        packed, count = _forgotten(truth, one, other)
        truth.sweep()
        without = _tried(lambda: truth.answers_to(packed, natively=True)) if count else None
        if without is not None and _shaped(without, first):
            yield f"{count} numbers that it hardly depends on unread", without


def _forgotten(truth: Truth, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The first input with the other's numbers where its answer hardly depends on them.

    And how many these are; in each large input a quarter or none.
    """
    slots = truth.frame.input_slots
    most = max(slot.count for slot in slots)
    arguments = functools.partial(truth.arguments, ADMISSION_SEEDS[0])
    truth.put_back()
    masks = faint(truth.model, truth.device, arguments, ADMISSION_SEEDS[1])
    packed, count = one.clone(), 0
    for slot, mask, into, by in zip(
        slots, masks, views(slots, packed), views(slots, other), strict=False
    ):
        if mask is not None and slot.count >= LARGE * most and CUT * int(mask.sum()) >= slot.count:
            into.copy_(torch.where(mask, by, into))
            count += int(mask.sum())
    return packed, count


def cuts(slots: Sequence[Slot], tensors: Leaves) -> Iterator[tuple[int, int, Part]]:
    """Which inputs are cut, in which dimension, and where in it.

    No whole numbers in order: places where parts of others begin and end, which mean nothing mixed.
    """
    most = max(slot.count for slot in slots)
    for parts in (Part.FIRST, Part.LAST), (Part.MIDDLE,):  # what forgets seldom does at both ends
        for leaf, (slot, tensor) in enumerate(zip(slots, tensors, strict=True)):
            if slot.count < LARGE * most or _is_in_order(tensor):
                continue
            for dim, size in enumerate(slot.shape):
                if size >= LEAST_SIZE:
                    yield from ((leaf, dim, part) for part in parts)


def _is_in_order(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return False
    return any(
        bool((tensor.diff(dim=dim) >= 0).all())
        for dim, size in enumerate(tensor.shape)
        if size >= LEAST_SIZE
    )


def _tried(call: Callable[[], T | None]) -> T | None:
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a forward does that knows inputs of one piece only
        return None


def _shaped(leaves: Leaves, first: Leaves) -> bool:
    return all(a.shape == b.shape for a, b in zip(leaves, first, strict=True))


def _cut(size: int, answer: Answering, first: Leaves) -> tuple[int, Leaves] | None:
    """How many indices were cut, and the answer; None where the whole tensor changes nothing.

    None also where the reference does not repeat itself to the last digits, or answers in another
    shape: what it is off by would look like what was cut.
    """

    def same(leaves: Leaves) -> bool:
        return _shaped(leaves, first) and alike(leaves, first)

    if not (same(answer(0)) and same(answer(0))):
        return None
    count = size // CUT
    found = answer(count)
    if not _shaped(found, first):
        return None
    if not same(found):
        return count, found
    if same(answer(size)):
        return None
    low, high = count, size  # so many change nothing, so many do
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(answer(middle)) else (low, middle)
    count = low + max(1, (size - low) // NEXT_CUT)
    return count, answer(count)
