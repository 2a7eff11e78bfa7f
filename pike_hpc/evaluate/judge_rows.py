"""Rows of floating outputs that near ties make others, while a program is timed.

What a reference looks up by an `argmin`, or sends where a `topk` says, is another where the choice
falls the other way: as far off as any other answer, and so is all of its row, and no other. Of a
reference that chooses few such rows may be off, in few calls, as few whole numbers may differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.correctness import INDEX_UNEQUAL, SPIKE, TIES, are_scattered, compare

MOST_ROWS = 8
"""How many rows of an output may be off in a call; INDEX_UNEQUAL of them where that is less."""

CALLS, CALLS_PART, SAME_PART = 2, 0.1, 1e-3
"""In how many calls rows may be off: in so many, and in TIES of all for each row that there is, no
more than such a part. The same row may in so many and such a part of all. Of 256 rows that are
the nearest of 64 codes one is off in one to eight of ten thousand."""

MOST_BYTES = 1 << 27
"""Larger outputs are not looked at by rows, which takes copies of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of an output that are off."""

    off: tuple[int, ...]
    count: int
    """Of all rows."""
    dim: int
    """Along which they lie."""


def rows_off(
    answer: torch.Tensor,
    reference: torch.Tensor,
    signal: float,
    fits: Callable[[torch.Tensor], bool],
) -> Rows | None:
    """The fewest rows without which an answer fits; None where near ties make no such rows.

    A row lies along the last dimension, or along the second, as the channels of one place do. Of
    an output with one dimension it is a number.

    Args:
        answer: a floating output that does not fit.
        reference: the reference's.
        signal: of the output. What never moves hangs on no choice.
        fits: whether an answer is within its limits.
    """
    if not answer.dim() or not signal > 0.0 or answer.nbytes > MOST_BYTES:
        return None
    if not compare(answer, reference, signal).spike <= SPIKE:
        return None  # nor is what is not finite
    shape = answer.shape if answer.dim() > 1 else (*answer.shape, 1)
    both = answer.view(shape), reference.view(shape)

    def as_it_was(mended: torch.Tensor) -> bool:
        return fits(mended.view(answer.shape))

    found = (_along(dim, *both, as_it_was) for dim in sorted({len(shape) - 1, 1}, reverse=True))
    return next((rows for rows in found if rows is not None), None)


def _along(
    dim: int, answer: torch.Tensor, reference: torch.Tensor, fits: Callable[[torch.Tensor], bool]
) -> Rows | None:
    sizes = torch.linalg.vector_norm(answer - reference, dim=dim)
    most = min(MOST_ROWS, math.floor(INDEX_UNEQUAL * sizes.numel()))
    worst = sizes.flatten().topk(most).indices
    places = torch.unravel_index(worst, sizes.shape)

    def fits_without(count: int) -> bool:
        these = tuple(place[:count] for place in places)
        mended = answer.clone()
        mended.movedim(dim, -1)[these] = reference.movedim(dim, -1)[these]
        return fits(mended)

    if not fits_without(most):
        return None
    count = next(count for count in range(1, most + 1) if fits_without(count))
    different = torch.zeros_like(sizes, dtype=torch.bool)
    different.view(-1)[worst[:count]] = True
    if not are_scattered(different):
        return None
    return Rows(off=tuple(worst[:count].tolist()), count=sizes.numel(), dim=dim)


class OftenOff:
    """Counts the calls in which rows are off."""

    def __init__(self) -> None:
        self._calls = 0
        self._hits: Counter[tuple[int, int, int]] = Counter()
        """By output, dimension and row."""

    def begin(self) -> None:
        """Forget what was off so far: that was a rehearsal."""
        self._calls = 0
        self._hits.clear()

    def more_often(self, found: Sequence[tuple[int, Rows]], seen: int) -> str:
        """Count a call; how rows are off in more calls than near ties are in, empty if not.

        Args:
            found: its outputs that have such rows, by number.
            seen: calls so far.
        """
        self._calls += 1
        hits = [(leaf, rows.dim, row) for leaf, rows in found for row in rows.off]
        self._hits.update(hits)
        part = min(CALLS_PART, TIES * max(rows.count for _, rows in found))
        counts = {
            "the same row is": (max(self._hits[hit] for hit in hits), SAME_PART),
            "a row is": (self._calls, part),
        }
        for what, (count, most) in counts.items():
            if count > (end := CALLS + most * seen):
                return f"{what} off in {count} of {seen} calls, and {int(end)} may"
        return ""
