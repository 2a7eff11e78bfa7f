"""Answers where they lie: poison, the judge's own copy of them, their distance from the truth.

Works on tensors of any device and moves nothing to the host but three numbers an answer. What a
candidate can still write is never compared: `take` first, then look at what was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.layout import FLOATS, Slot

PIECE = 1 << 22
"""Elements looked at at a time: 32 MB of differences, which stay in an H200's 60 MB of L2."""

FLOAT_POISON, OTHER_POISON = 0xFF, 0xA5
"""As in `judge_link.poison`: all bits set is a NaN in every float format."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far an answer is from the truth. NaN where either is not finite."""

    square_sum: float
    """Over all elements, |answer - truth| squared; complex numbers count both parts. Where values
    are not floats each wrong element counts 1."""
    max_abs: float
    """The largest |answer - truth|, of complex numbers that of a part; 1 or 0 where not floats."""
    poisoned: int
    """Elements that hold poison. A one-byte integer may hold that value honestly."""


def poison(raw: torch.Tensor, slots: Sequence[Slot]) -> None:
    """Fill an output buffer with what no honest answer is. Not waited for.

    Args:
        raw: all of its bytes, as uint8.
        slots: what lies in it.
    """
    raw.fill_(OTHER_POISON)
    for slot in slots:
        if slot.dtype in FLOATS:
            raw[slot.offset : slot.offset + slot.size_bytes].fill_(FLOAT_POISON)


def take(shared: torch.Tensor, own: torch.Tensor) -> None:
    """Copy what a candidate can write to memory that it can't reach, and wait until it is there.

    Args:
        shared: bytes of a shared buffer.
        own: as many bytes, of an ordinary tensor of the judge's on the same device.
    """
    own.copy_(shared)
    if own.is_cuda:
        torch.cuda.current_stream(own.device).synchronize()


def difference(answer: torch.Tensor, truth: torch.Tensor) -> Difference:
    """Compare an answer with the truth, in float64, piece by piece.

    Args:
        answer: contiguous, the judge's own copy.
        truth: contiguous, of the same shape and kind of number on the same device; of any
            precision.

    Raises:
        ValueError: shapes or kinds differ, or a tensor is not contiguous.
    """
    if answer.shape != truth.shape or _kind(answer) != _kind(truth):
        raise ValueError(
            f"an answer {answer.dtype} {tuple(answer.shape)} for a truth "
            f"{truth.dtype} {tuple(truth.shape)}"
        )
    if not (answer.is_contiguous() and truth.is_contiguous()):
        raise ValueError("only contiguous tensors are compared: others would have to be copied")
    totals = torch.zeros(2, dtype=torch.float64, device=answer.device)
    poisoned = torch.zeros((), dtype=torch.int64, device=answer.device)
    flat_answer, flat_truth = answer.view(-1), truth.view(-1)
    for start in range(0, flat_answer.numel(), PIECE):
        ours, theirs = flat_answer[start : start + PIECE], flat_truth[start : start + PIECE]
        poisoned += _poisoned(ours)
        if _kind(ours) == "other":
            wrong = torch.count_nonzero(ours != theirs)
            totals[0] += wrong
            totals[1] = torch.maximum(totals[1], wrong.clamp(max=1))
            continue
        if _kind(ours) == "complex":
            ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
        apart = ours.to(torch.float64, copy=True).sub_(theirs)
        totals[0] += torch.linalg.vector_norm(apart).square()
        totals[1] = torch.maximum(totals[1], torch.linalg.vector_norm(apart, float("inf")))
    square_sum, max_abs, count = torch.cat([totals, poisoned.double().view(1)]).tolist()
    return Difference(square_sum=square_sum, max_abs=max_abs, poisoned=int(count))


def _kind(values: torch.Tensor) -> str:
    return "complex" if values.is_complex() else "real" if values.is_floating_point() else "other"


def _poisoned(values: torch.Tensor) -> torch.Tensor:
    """How many elements hold poison, as a number on their device."""
    size = values.element_size()
    mark = OTHER_POISON if _kind(values) == "other" else FLOAT_POISON
    pattern = int.from_bytes(bytes([mark]) * min(size, 8), "little", signed=size > 1)
    held = values.view(_WORDS[size]) == pattern
    return torch.count_nonzero(held.view(-1, 2).all(dim=1) if size == 16 else held)
