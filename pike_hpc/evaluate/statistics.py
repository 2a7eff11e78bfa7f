"""From windows to a speedup with an interval, and when to stop measuring. No clock, no torch.

A block holds a few windows of the reference and of the candidate on the same inputs, next to
each other in time, so that drift of the machine cancels. The estimate is
exp(median over blocks of log(median reference / median candidate)); its interval a percentile
bootstrap over blocks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 2_000
CONFIDENCE = 0.95
HALF_BLOCK_MS = 25.0
NULL_FLOOR = 0.5
"""A latency never falls below this part of what was measured, whatever the null constant is: what
remains of a model much faster than the protocol is noise, and noise over noise made an unchanged
8 x 64 Linear look 20 times as fast as itself. Such a model's speedup is understated instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Latencies of one block in milliseconds, the null constant still in them."""

    reference_ms: tuple[float, ...]
    candidate_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of latencies, above 1 where the candidate is faster."""

    speedup: float
    ci95: tuple[float, float]
    candidate_ms: float
    reference_ms: float
    windows: int
    """Timed calls of the candidate."""

    @property
    def half_width(self) -> float:
        """Half of the interval relative to the estimate."""
        return (self.ci95[1] - self.ci95[0]) / (2 * self.speedup)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When enough is known: an interval narrow enough, or the budget spent."""

    half_width: float
    budget_s: float
    min_blocks: int = 5
    early_blocks: int = 3
    early_s: float = 0.5
    early_below: float = 0.8
    """A candidate whose whole interval lies below this after `early_blocks` and
    `early_s` is let go: a short disturbance must not end a good one."""


def without_null(latency_ms: float, null_ms: float) -> float:
    """What the model took, the protocol's own constant taken off."""
    return max(latency_ms - null_ms, NULL_FLOOR * latency_ms)


def estimate(blocks: Sequence[Block], null_ms: float, rng: random.Random) -> Estimate:
    """The speedup that the blocks show. Raises ValueError without blocks."""
    if not blocks:
        raise ValueError("no blocks")
    logs = [
        math.log(
            without_null(median(b.reference_ms), null_ms)
            / without_null(median(b.candidate_ms), null_ms)
        )
        for b in blocks
    ]
    low, high = bootstrap_interval(logs, rng)
    return Estimate(
        speedup=math.exp(median(logs)),
        ci95=(math.exp(low), math.exp(high)),
        candidate_ms=without_null(median(x for b in blocks for x in b.candidate_ms), null_ms),
        reference_ms=without_null(median(x for b in blocks for x in b.reference_ms), null_ms),
        windows=sum(len(b.candidate_ms) for b in blocks),
    )


def bootstrap_interval(
    values: Sequence[float], rng: random.Random, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the median, at CONFIDENCE; always holds the median."""
    count = len(values)
    medians = sorted(median(rng.choices(values, k=count)) for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    low = medians[math.floor(tail * (resamples - 1))]
    high = medians[math.ceil((1 - tail) * (resamples - 1))]
    middle = median(values)
    return min(low, middle), max(high, middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Go on or not, and whether the candidate was let go early."""

    stop: bool
    early: bool = False


def decide(found: Estimate, blocks: int, spent_s: float, rule: StopRule) -> Decision:
    """What to do after a block."""
    early = blocks >= rule.early_blocks and spent_s >= rule.early_s
    if early and found.ci95[1] < rule.early_below:
        return Decision(stop=True, early=True)
    if blocks < rule.min_blocks:
        return Decision(stop=False)
    return Decision(stop=found.half_width <= rule.half_width or spent_s >= rule.budget_s)


def windows_per_half(latency_ms: float) -> int:
    """Windows of one side in a block: as many as fit HALF_BLOCK_MS, one at least, 40 at most.

    Short halves follow each other closely, so that a drifting or busy machine hits both sides.
    """
    return max(1, min(40, math.ceil(HALF_BLOCK_MS / max(latency_ms, 1e-6))))
