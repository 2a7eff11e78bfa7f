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

WINDOWS = 20
"""Of one side, from which a mean tells much beside a median; blocks with fewer are taken together.
"""

GROUPS = 3
"""With fewer, one that a machine stopped in would speak for all."""


def evened(found: Estimate, blocks: Sequence[Block], null: Null) -> Estimate:
    """The estimate, as fast as the mean call where that is slower than the median one.

    Args:
        found: by the medians of these blocks.
        blocks: as they count.
        null: the constant of their windows.
    """
    over = [_over(group, null) for group in _groups(blocks)]
    seen = centre(over)
    # Of calls within the constant's noise nothing is told from what it does to some windows.
    if len(over) < GROUPS or seen.low <= UNEVEN or found.candidate_ms < null.sure_ms:
        return found
    part = math.exp(-seen.middle)
    middle, low, high = (math.log(x) for x in (found.speedup, *found.ci95))
    below = math.hypot(middle - low, seen.high - seen.middle)
    above = math.hypot(high - middle, seen.middle - seen.low)
    return replace(
        found,
        speedup=found.speedup * part,
        ci95=(math.exp(middle - below) * part, math.exp(middle + above) * part),
        candidate_ms=found.candidate_ms / part,
    )


def _groups(blocks: Sequence[Block]) -> list[Block]:
    """Neighbouring blocks as one where they have few windows; the last takes what is left over."""
    groups: list[Block] = []
    reference_ms: tuple[float, ...] = ()
    candidate_ms: tuple[float, ...] = ()
    for block in blocks:
        reference_ms += block.reference_ms
        candidate_ms += block.candidate_ms
        if min(len(reference_ms), len(candidate_ms)) >= WINDOWS:
            groups.append(Block(reference_ms=reference_ms, candidate_ms=candidate_ms))
            reference_ms = candidate_ms = ()
    if candidate_ms:
        last = groups.pop() if groups else Block(reference_ms=(), candidate_ms=())
        reference_ms, candidate_ms = (
            last.reference_ms + reference_ms,
            last.candidate_ms + candidate_ms,
        )
        groups.append(Block(reference_ms=reference_ms, candidate_ms=candidate_ms))
    return groups


def _over(block: Block, null: Null) -> float:
    """How far the candidate's mean call is over its median one, as a logarithm.

    Less what the reference's is, in milliseconds: what a machine or the constant does to some
    windows they bear alike, and it weighs the more the shorter the call is.
    """
    usual_ms = median(block.candidate_ms)
    own_ms, its_ms = (mean(x) - median(x) for x in (block.candidate_ms, block.reference_ms))
    even_ms = usual_ms + own_ms - max(0.0, its_ms)
    return math.log(without_null(even_ms, null) / without_null(usual_ms, null))
