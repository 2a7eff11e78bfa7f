"""A program that is slow in some of its calls is not as fast as its median says.

Medians are for machines that are disturbed now and then. They would also let a program be slow for
nothing in nearly half of its calls, or quick only where an input happens to allow it. A machine
disturbs both sides alike, and blocks at random; a program's slow calls are in all of its blocks. So
what its mean is over its median, beyond what the reference's is, counts where the blocks agree on
it. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

from pike_hpc.evaluate.centre import centre
from pike_hpc.evaluate.statistics import Block, Estimate, Null, without_null

UNEVEN = 0.05
"""Part of a latency, as a logarithm: what is surely more is no machine's."""

WINDOWS = 4
"""Of one side in a block, from which its mean tells anything beside its median."""


def evened(found: Estimate, blocks: Sequence[Block], null: Null) -> Estimate:
    """The estimate, as fast as the mean call where that is slower than the median one.

    Args:
        found: by the medians of these blocks.
        blocks: as they count.
        null: the constant of their windows.
    """
    over = [
        _over(block.candidate_ms, null) - _over(block.reference_ms, null)
        for block in blocks
        if min(len(block.candidate_ms), len(block.reference_ms)) >= WINDOWS
    ]
    if len(over) < len(
        blocks
    ):  # such calls are long, and few: one that is slow widens the interval
        return found
    seen = centre(over)
    if seen.low <= UNEVEN:
        return found
    part = math.exp(-seen.middle)
    low, high = found.ci95
    return replace(
        found,
        speedup=found.speedup * part,
        ci95=(low * part, high * part),
        candidate_ms=found.candidate_ms / part,
    )


def _over(windows_ms: Sequence[float], null: Null) -> float:
    """How far the mean is over the median, as a logarithm, the constant taken off both."""
    usual, long = (without_null(ms, null) for ms in (median(windows_ms), mean(windows_ms)))
    return math.log(long / usual)
