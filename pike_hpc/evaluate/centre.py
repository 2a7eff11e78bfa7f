"""The centre of a few numbers that lie symmetrically about it, and an interval. No torch.

Estimate: the median of all pairwise means (Hodges and Lehmann, Estimates of location based on rank
tests, Ann. Math. Stat. 34, 1963). Interval: the signed-rank interval, which holds for every
symmetric law (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.3), interpolated
between its steps. Up to five numbers have no such interval; theirs is a multiple of the range
(Lord, The use of range in place of standard deviation in the t-test, Biometrika 34, 1947).

Chosen by simulation (tests/bench/intervals.py). With 7 numbers a percentile bootstrap of the median
held the truth in 87 % of the cases and an order-statistic interval has too few steps; an effect
that changes sign from number to number moves the median and not this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

CONFIDENCE = 0.963
"""Of one interval by itself. Who looks after each number and stops at the first narrow interval
gets lucky ones too often, which costs up to three points (Chow and Robbins, Ann. Math. Stat. 36,
1965, give the theory): what is left lies around 0.95."""

MOST = 48
"""More numbers than this are taken together, neighbours first: the cost is quadratic."""

RANGES = {2: 7.06, 3: 1.38, 4: 0.76, 5: 0.534}
"""Half of the interval in ranges of the numbers: the 0.955 quantiles of |centre| / range over 10
million samples of a normal law (for two numbers tan(pi / 2 * 0.955) / 2). Tails heavier than the
normal's make these intervals hold more often, up to 0.97: hence not CONFIDENCE."""

NORMAL = 1.96
"""Half of a 95 % interval in standard deviations of a normal law."""

LONE = 0.7
"""Half of the interval where there is a single number. No law says it: of a logarithm, from half
to twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """The estimate and the ends of its interval."""

    middle: float
    low: float
    high: float


def centre(values: Sequence[float]) -> Centre:
    """Centre and interval at CONFIDENCE. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    taken = _together(values)
    count = len(taken)
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(taken, 2))
    middle = median(means)
    if count == 1:
        return Centre(middle=middle, low=middle - LONE, high=middle + LONE)
    if count in RANGES:
        half = RANGES[count] * (max(taken) - min(taken))
        return Centre(middle=middle, low=middle - half, high=middle + half)
    step, part = _depth(count)
    low = means[step] + part * (means[step + 1] - means[step])
    high = means[-1 - step] - part * (means[-1 - step] - means[-2 - step])
    return Centre(middle=middle, low=min(low, middle), high=max(high, middle))


def joined(half: float, known: float, count: int) -> float:
    """Half of an interval for a sum: what `count` numbers show, and a spread known beforehand.

    Few numbers show their own spread badly, and their interval is wide for it; the surer the rest
    of the sum is, the less the whole needs of that. The root of the sum of squares alone held in
    up to 98 of 100. By degrees of freedom of the sum (Welch, The generalization of Student's
    problem when several different population variances are involved, Biometrika 34, 1947), and
    never below either part, where up to six numbers would be by that. More than MOST numbers count
    as they are, not as they are grouped: less than a hundredth of the interval.

    Args:
        half: of the numbers' own interval.
        known: half of a 95 % interval of what is known.
        count: of the numbers; with one of them the interval is no law's, and as wide as it is.
    """
    if count == 1:
        return math.hypot(half, known)
    sampled = half / _wider(1 / (count - 1))
    total = math.hypot(sampled, known)
    if not total:
        return 0.0
    return max(half, total * _wider((sampled / total) ** 4 / (count - 1)))


def _wider(unsure: float) -> float:
    """How much wider a 95 % interval is by Student's law than by the normal one.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5, three terms of it: 2 % less
    than it is for five numbers, 4 % for four, 10 % for three, 44 % for two. With nothing beside
    them it cancels.

    Args:
        unsure: one by the degrees of freedom.
    """
    z = NORMAL
    return 1 + (z**2 + 1) / 4 * unsure + (5 * z**4 + 16 * z**2 + 3) / 96 * unsure**2


def _together(values: Sequence[float]) -> list[float]:
    """At most MOST numbers: medians of neighbours, as many of each order where orders alternate."""
    if len(values) <= MOST:
        return list(values)
    size = -(-len(values) // MOST)
    groups = len(values) // (size + size % 2)
    ends = [i * len(values) // groups for i in range(groups + 1)]
    return [median(values[a:b]) for a, b in itertools.pairwise(ends)]


@cache
def _depth(count: int) -> tuple[int, float]:
    """(whole steps, part of the next) from either end of the sorted means to the interval's."""
    tail = (1 - CONFIDENCE) / 2
    below = 0.0
    for step, chance in enumerate(_rank_sums(count)):
        if below + chance > tail:
            return step - 1, (tail - below) / chance
        below += chance
    raise AssertionError("the probabilities of a law add up to 1")


@cache
def _rank_sums(count: int) -> tuple[float, ...]:
    """P(T = 0), P(T = 1), ...: the sum of the ranks 1 to `count`, each in it or not by a coin."""
    if count == 0:
        return (1.0,)
    before = _rank_sums(count - 1)
    without = (*before, *[0.0] * count)
    having = (*[0.0] * count, *before)
    return tuple((a + b) / 2 for a, b in zip(without, having, strict=True))
