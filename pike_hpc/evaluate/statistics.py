"""From windows to a speedup with an interval, and when to stop measuring. No clock, no torch.

A block holds a few windows of the reference and of the candidate on the same inputs, next to
each other in time, so that drift of the machine cancels. A block says
log(median reference / median candidate); the speedup is the exponential of the blocks' centre, the
interval that of the centre's (`centre`) and of what no block can show, that another process of the
same program is a little faster or slower. It holds the truth in 93 to 97 of 100 measurements, also
where measuring stops as soon as it is narrow: tests/bench/intervals.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from pike_hpc.evaluate.centre import LONE, NORMAL, centre, joined

HALF_BLOCK_MS = 25.0
NULL_FLOOR = 0.5
"""A latency never falls below this part of what was measured, or of the constant where that is
more, but where physics bounds it anyway: what remains of a model much faster than the protocol is
noise, and noise over noise made an unchanged 8 x 64 Linear look 20 times as fast as itself. A
program that writes its answer where the protocol would copy it, or puts something shorter in the
place of the runner's own part, saves of the constant, and gains no more than twice by it either."""
SURE, STEADY = 4.0, 0.01
"""Where physics bounds it, what is left of a latency tells something from SURE spreads of the
constant on, of which STEADY of the constant is the least that is believed. Simulated with noise of
halves of 0.5 to 3 % and of windows of 2 to 10 %: whatever part of the constant an unchanged model
takes, it stays within 0.78 and 1.24 in 98 of 100 measurements of 10 blocks; with 2 spreads it
reaches 1.35, with 1 it reaches 1.6. A constant of three quarters of a latency, known to 1 %, takes
off all of itself."""

CLOCK_BLOCKS = 4
"""Blocks whose latencies show the clock's step: all of them would only cost time."""
CLOCK_PART = 0.42
"""The median of a clock's readings is off by up to half a step on either side, by less than this
part of both together in 97 of 100 cases."""
APART = 0.01
"""How far the speedup in one pair of processes lies from that of many pairs at the least: half of a
95 % interval, of a logarithm. Models that keep a GPU busy show a standard deviation of 0 to 0.5 %
beside that of the blocks (tests/bench/agreement.py on H200s, 20 runs each of five programs)."""
APART_SPREADS = 1.5
"""The same in spreads of windows, for models that wait for their CPU: the noisier the host, the
further its processes lie apart. This and the next number are the likeliest for 113 verdicts on
H200s and 60 on two cores, all of references held against themselves (docs/adr/0016)."""
APART_MOST = 0.04
"""And at the most, before what the constant adds to it."""
NORMAL_STEP = 0.6745 * math.sqrt(2)
"""The median distance of two numbers of a normal law, in its standard deviations."""
EARLY_CARE = 2.2
"""How many times the upper half of the interval a candidate must be below the limit to be let go:
it is asked after each block, and in less than 1 % of measurements may a good one be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Latencies of one block in milliseconds, the null constant still in them."""

    reference_ms: tuple[float, ...]
    candidate_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """The protocol's own constant: a window with no model in it, copies in and out included."""

    ms: float
    spread_ms: float
    """Interquartile range of its windows: their noise, however large the copies."""
    bounded: bool = False
    """Whether physics refuses who takes much less than the copies do (`physics.bounds_copies`)."""

    @classmethod
    def of(cls, windows_ms: Sequence[float], *, bounded: bool = False) -> Null:
        """What timed windows show; a single one shows no spread, and is believed within itself.

        Raises StatisticsError, a ValueError, without windows.
        """
        middle = median(windows_ms)
        if len(windows_ms) < 2:
            return cls(ms=middle, spread_ms=middle, bounded=bounded)
        low, _, high = quantiles(windows_ms, n=4, method="inclusive")
        return cls(ms=middle, spread_ms=high - low, bounded=bounded)

    @property
    def sure_ms(self) -> float:
        """What must be left of a latency to be more than the constant's noise."""
        return SURE * max(self.spread_ms, STEADY * self.ms)

    def half_width_ms(self, blocks: int) -> float:
        """Half of the constant's 95 % interval, from windows in so many blocks.

        Windows of one block count as one, since a machine that is slow is so for all of them. The
        median's standard error is 1.25 times the mean's, an interquartile range 1.35 standard
        deviations of a normal law.
        """
        return NORMAL * 1.25 / 1.35 * self.spread_ms / math.sqrt(blocks)


LOOSE = 0.1
"""A wider interval says little, and the machine that makes it is often busy for a while only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of latencies, above 1 where the candidate is faster."""

    speedup: float
    ci95: tuple[float, float]
    candidate_ms: float
    reference_ms: float
    windows: int
    """Timed calls of the candidate."""
    half_width: float
    """Half of the interval relative to the estimate, without `apart`: what more blocks narrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When enough is known: an interval narrow enough, or the budget spent."""

    half_width: float
    budget_s: float
    patience: float = 3.0
    """Up to so many times as much is spent while the half-width is above LOOSE."""
    min_blocks: int = 5
    early_blocks: int = 4
    early_s: float = 0.5
    early_below: float = 0.8
    """A candidate whose whole interval, EARLY_CARE times as wide, lies below this after
    `early_blocks` and `early_s` is let go: a short disturbance must not end a good one."""


def without_null(latency_ms: float, null: Null) -> float:
    """What the model took, the protocol's own constant taken off; above 0.

    Half of what was measured is the least, and half of the constant where less was measured than
    that: no window without a model is shorter, so whoever does the runner's part for it gains no
    more than a model that takes no time. Where physics bounds it, the constant's noise is the
    least: a program that moves large buffers as fast as they can be moved takes less than the
    copies do.
    """
    least_ms = NULL_FLOOR * max(latency_ms, null.ms)
    if null.bounded:
        least_ms = min(least_ms, null.sure_ms)
    return max(latency_ms - null.ms, least_ms)


def estimate(blocks: Sequence[Block], null: Null) -> Estimate:
    """The speedup that the blocks show. Raises ValueError without blocks."""
    if not blocks:
        raise ValueError("no blocks")
    logs = [
        math.log(
            without_null(median(b.reference_ms), null) / without_null(median(b.candidate_ms), null)
        )
        for b in blocks
    ]
    candidate_ms = without_null(median(x for b in blocks for x in b.candidate_ms), null)
    reference_ms = without_null(median(x for b in blocks for x in b.reference_ms), null)
    found = centre(logs)
    unseen = CLOCK_PART * clock_step(blocks) * (1 / reference_ms + 1 / candidate_ms)
    unseen = min(unseen, LONE)
    # The same constant is taken off both sides: where it is off, both latencies shift alike.
    shift = null.half_width_ms(len(blocks)) * abs(1 / reference_ms - 1 / candidate_ms)
    shift = min(shift, LONE)
    others = min(apart(blocks, reference_ms, candidate_ms, null), LONE)

    def ends(known: float) -> tuple[float, float]:
        """Of the interval's logarithms, from its middle: what no block shows joined to them."""
        below, above = (
            max(joined(half, known, len(blocks)), math.hypot(unseen, known))
            for half in (found.middle - found.low, found.high - found.middle)
        )
        return -below, above

    below, above = ends(math.hypot(shift, others))
    narrowest = ends(shift)
    return Estimate(
        speedup=math.exp(found.middle),
        ci95=(math.exp(found.middle + below), math.exp(found.middle + above)),
        candidate_ms=candidate_ms,
        reference_ms=reference_ms,
        windows=sum(len(b.candidate_ms) for b in blocks),
        half_width=(math.exp(narrowest[1]) - math.exp(narrowest[0])) / 2,
    )


def apart(blocks: Sequence[Block], reference_ms: float, candidate_ms: float, null: Null) -> float:
    """How far this pair of processes may be from the mean over pairs, half of an interval.

    The root mean square of what its sides may be: `side_apart` is of pairs of like sides.
    A side's is a part of all that was measured, the constant in it, and weighs the more the less is
    left.

    Args:
        blocks: as measured.
        reference_ms: what is left of the reference without the constant.
        candidate_ms: of the candidate.
        null: the constant.
    """
    sides = (
        side_apart(_spread([b.reference_ms for b in blocks])) * (1 + null.ms / reference_ms),
        side_apart(_spread([b.candidate_ms for b in blocks])) * (1 + null.ms / candidate_ms),
    )
    return math.hypot(*sides) / math.sqrt(2)


def side_apart(spread: float) -> float:
    """How far processes of a program lie apart, half of an interval, by its windows' spread."""
    return min(max(APART, APART_SPREADS * spread), APART_MOST)


def _spread(halves_ms: Sequence[Sequence[float]]) -> float:
    """Of a side's windows, as a standard deviation of a logarithm, by neighbours in time.

    Within a half, whose windows share a drift's slowness. Between halves where each is one window:
    a drift of more than half a percent a block counts as spread there.
    """
    pairs = [pair for half in halves_ms for pair in itertools.pairwise(half)]
    pairs = pairs or list(itertools.pairwise(half[0] for half in halves_ms))
    return median(abs(math.log(b / a)) for a, b in pairs) / NORMAL_STEP if pairs else 0.0


def clock_step(blocks: Sequence[Block]) -> float:
    """The clock's step in milliseconds as far as readings show one; 0 where none repeats.

    A coarse clock gives the same few readings again and again, and blocks that agree to the last
    digit: the spread between them says nothing of what lies between two readings.
    """
    seen = [x for b in blocks[:CLOCK_BLOCKS] for x in (*b.reference_ms, *b.candidate_ms)]
    distinct = sorted(set(seen))
    if len(distinct) == len(seen):
        return 0.0
    steps = (b - a for a, b in itertools.pairwise(distinct) if b - a > 1e-9 * b)
    return min(steps, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Go on or not, and whether the candidate was let go early."""

    stop: bool
    early: bool = False


def decide(found: Estimate, blocks: int, spent_s: float, rule: StopRule) -> Decision:
    """What to do after a block."""
    early = blocks >= rule.early_blocks and spent_s >= rule.early_s
    if early and found.speedup * (found.ci95[1] / found.speedup) ** EARLY_CARE < rule.early_below:
        return Decision(stop=True, early=True)
    if blocks < rule.min_blocks:
        return Decision(stop=False)
    budget_s = rule.budget_s * (rule.patience if found.half_width > LOOSE else 1.0)
    return Decision(stop=found.half_width <= rule.half_width or spent_s >= budget_s)


def candidate_first(block: int) -> bool:
    """Whether the candidate has the first half of block 0, 1, 2 and so on.

    AB BA BA AB: neither side is always the first, and as many neighbours in time are of one side
    as of both. With AB BA alone, machines whose speed changes from half to half make blocks agree
    by accident, and the interval held the truth a point less often.
    """
    return block % 4 in (1, 2)


def windows_per_half(latency_ms: float) -> int:
    """Windows of one side in a block: as many as fit HALF_BLOCK_MS, one at least, 40 at most.

    Short halves follow each other closely, so that a drifting or busy machine hits both sides.
    """
    return max(1, min(40, math.ceil(HALF_BLOCK_MS / max(latency_ms, 1e-6))))
