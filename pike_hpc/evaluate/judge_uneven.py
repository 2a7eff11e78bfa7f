"""A program that is slow in some of its calls is not as fast as its median says.

Medians are for machines that are disturbed now and then. They would also let a program be slow for
nothing in nearly half of its calls, or quick only where an input happens to allow it. A machine
disturbs both sides alike. So what the candidate's mean is over what is usual, beyond what the
reference's is, counts where it would hardly be seen if either side were as likely to bear what a
block bore. Whole blocks are asked, and not what lies apart within one: neither a machine nor a
program need be slow in all of them. Until it is known whose the slow calls are, the interval has
room for both. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, median_high, median_low, stdev

from pike_hpc.evaluate.statistics import Block, Estimate, Null, without_null

UNEVEN = 0.05
"""Part of a latency: what is surely more is no machine's."""

SURE = 0.016
"""The chance of a machine that does as much by itself below which it is the program's: of six
blocks all are slow, 1/64. With 0.04 five are enough, and measuring may stop there."""

DOUBT = 0.1
"""Part of a latency from which on it matters whose it is."""

STOPPED = 1.25
"""A reference that takes so many times what it usually does, and what the candidate beside it lets
one expect, was stopped in that half: what it took beyond is a disturbance like another. Without
this an eighth of all halves, of one window of 30 ms, stopped for 250 ms made two of five timings of
a program ten times as fast look uneven."""

LEVELS, MOST = 256, 96
"""Steps by which a chance is counted: a block that bears less than half of one bears nothing. More
blocks are taken together, neighbours first: the cost is cubic, 60 ms with 240."""


def evened(found: Estimate, blocks: Sequence[Block], null: Null) -> tuple[Estimate, bool]:
    """The estimate with slow calls taken into account, and whether they are surely the program's.

    If they are, it is as fast as its mean call. While that is in doubt the interval begins where
    that is: it isn't narrow then, which makes measuring go on.

    Args:
        found: by the medians of these blocks.
        blocks: as they count.
        null: the constant of their windows.
    """
    seen = Excess.of(blocks, null)
    # Within the constant's noise nothing is told from what it does to some windows.
    most_ms = max(found.candidate_ms, seen.part * seen.left_ms)
    if seen.part <= UNEVEN or most_ms < null.sure_ms:
        return found, False
    over = _over(seen, seen.part, null)
    if seen.chance <= SURE:
        return _by_mean(found, blocks, seen, null), True
    if seen.part <= DOUBT:
        return found, False
    low, high = found.ci95
    low = min(low, found.speedup * math.exp(-over))
    half_width = max(found.half_width, -math.expm1(-over) / 2)
    return replace(found, ci95=(low, high), half_width=half_width), False


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How far the mean call of a half is over the usual one, block by block in milliseconds."""

    own_ms: tuple[float, ...]
    """The candidate's."""
    its_ms: tuple[float, ...]
    """The reference's, or nothing where its mean is below its usual call."""
    usual_ms: float
    """The candidate's usual call, the constant in it."""
    left_ms: float
    """Without it."""

    @classmethod
    def of(cls, blocks: Sequence[Block], null: Null) -> Excess:
        """Usual is what the reference's median lets one expect, of either side.

        What most blocks' medians show of the candidate is that much slower or faster, so that a
        half that is slow throughout is over it, and drift of the machine is not.
        """
        usual = median_low(median(b.candidate_ms) / median(b.reference_ms) for b in blocks)
        its_usual_ms = median(median(b.reference_ms) for b in blocks)
        own_ms, its_ms, bases_ms = [], [], []
        for block in blocks:
            base_ms = median(block.reference_ms)
            # Never less than its usual: a candidate that is quick now and then slows down nobody.
            told_ms = max(median(block.candidate_ms) / usual, its_usual_ms)
            if base_ms > STOPPED * told_ms:
                base_ms = told_ms
            bases_ms.append(base_ms)
            own_ms.append(mean(block.candidate_ms) - usual * base_ms)
            # Who takes longer is disturbed for longer.
            its_ms.append((mean(block.reference_ms) - base_ms) * max(1.0, usual))
        if sum(its_ms) < 0.0:
            its_ms = [0.0] * len(its_ms)
        usual_ms = usual * mean(bases_ms)
        return cls(
            own_ms=tuple(own_ms),
            its_ms=tuple(its_ms),
            usual_ms=usual_ms,
            left_ms=without_null(usual_ms, null),
        )

    @property
    def beyond_ms(self) -> list[float]:
        """The candidate's beyond the reference's."""
        return [own - its for own, its in zip(self.own_ms, self.its_ms, strict=True)]

    @property
    def part(self) -> float:
        """What all blocks show of that, as a part of the usual call."""
        return mean(self.beyond_ms) / self.left_ms

    @property
    def chance(self) -> float:
        """Of seeing as much over UNEVEN, were each block's as likely to be the other side's."""
        over_ms = [ms - UNEVEN * self.left_ms for ms in self.beyond_ms]
        size = -(-len(over_ms) // MOST)
        return flipped([sum(over_ms[i : i + size]) for i in range(0, len(over_ms), size)])

    @property
    def half_width(self) -> float:
        """Half of the part's 95 % interval: by Student's law, whose quantile this is to 0.07."""
        count = len(self.own_ms)
        quantile = 1.96 + 3 / (count - 1)
        return quantile * stdev(self.beyond_ms) / self.left_ms / math.sqrt(count)


def flipped(values: Sequence[float]) -> float:
    """Of all ways to give the values signs, the part whose sum is at least theirs.

    Exact for values in LEVELS steps of the largest: a polynomial's coefficients, one factor a
    value, count the ways to each sum. They are digits of one whole number, which Python multiplies
    and adds up at once.
    """
    largest = max(map(abs, values), default=0.0)
    if not largest:
        return 1.0
    steps = [round(abs(value) / largest * LEVELS) for value in values]
    plus = sum(step for step, value in zip(steps, values, strict=True) if value > 0.0)
    bits = len(steps) + 1  # of a digit: all ways together are less
    ways = 1
    for step in steps:
        ways += ways << (step * bits)
    as_much = (ways >> (plus * bits)) % ((1 << bits) - 1)  # the sum of the digits from there on
    return float(as_much / 2 ** len(steps))


def _over(seen: Excess, part: float, null: Null) -> float:
    """How far a call that takes so much more is over the usual one, as a logarithm."""
    more_ms = seen.usual_ms + max(0.0, part) * seen.left_ms
    return math.log(without_null(more_ms, null) / seen.left_ms)


def _by_mean(found: Estimate, blocks: Sequence[Block], seen: Excess, null: Null) -> Estimate:
    """As fast as the mean call.

    From the median of the blocks: their centre moves where a third of them are slow throughout.
    """
    over, least, most = (
        _over(seen, seen.part + sign * seen.half_width, null) for sign in (0, -1, 1)
    )
    by_median = median_high(
        without_null(median(b.reference_ms), null) / without_null(median(b.candidate_ms), null)
        for b in blocks
    )
    middle, low, high = (math.log(x) for x in (found.speedup, *found.ci95))
    speedup = by_median * math.exp(-over)
    return replace(
        found,
        speedup=speedup,
        ci95=(
            speedup * math.exp(-math.hypot(middle - low, most - over)),
            speedup * math.exp(math.hypot(high - middle, over - least)),
        ),
        candidate_ms=found.candidate_ms * math.exp(over),
        half_width=max(found.half_width, (math.exp(most - over) - math.exp(least - over)) / 2),
    )
