"""What windows of a timing count as in which whole numbers, or rows, differ from the reference's.

Near ties make such windows, and so does who leaves numbers out. They count as no faster than the
others: pure arithmetic over what was measured, done anew with every block, so that it hangs on all
windows of the timing and not on which came first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from pike_hpc.evaluate.statistics import Block

MOST, MORE = 1 / 2, 2
"""The part of all windows, and how many beside it, in which such numbers may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A block as it was measured."""

    block: Block
    equal: frozenset[int]
    """Windows in which whole numbers, and rows that hang on a choice, are the reference's."""


def too_many(blocks: Sequence[Timed]) -> str:
    """In how many windows numbers differ; empty where near ties explain so many."""
    windows = sum(len(timed.block.candidate_ms) for timed in blocks)
    unequal = windows - sum(len(timed.equal) for timed in blocks)
    end = MOST * windows + MORE
    if unequal <= end:
        return ""
    return f"numbers differ in {unequal} of {windows} windows that count, and {int(end)} may"


def counted(blocks: Sequence[Timed]) -> list[Block]:
    """The blocks as they count; none where no window is equal.

    A window in which they differ takes what it took, or the median of those in which they don't if
    that is more. That is one of latencies over the reference's median in the same block, since a
    machine may be faster at one time than at another.
    """
    ratios = [
        timed.block.candidate_ms[i] / median(timed.block.reference_ms)
        for timed in blocks
        for i in timed.equal
    ]
    if not ratios:
        return []
    usual = median(ratios)
    return [_counted(timed, usual * median(timed.block.reference_ms)) for timed in blocks]


def _counted(timed: Timed, usual_ms: float) -> Block:
    took = enumerate(timed.block.candidate_ms)
    least = (ms if i in timed.equal else max(ms, usual_ms) for i, ms in took)
    return replace(timed.block, candidate_ms=tuple(least))
