"""Figures over many tasks: geometric means, their intervals, and shares of tasks reached.

Pure. Both ways of averaging are always given side by side, because each alone misleads:
`unclamped` is the mean over tasks with a correct candidate, as measured, slow-downs included;
`clamped` is the mean over all tasks with max(1, speedup), where a task without a correct
candidate counts as 1.0: what a person gets who keeps eager wherever it is not beaten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
"""Bootstrap resamples over tasks: the bounds then move by less than their second digit."""

REACHED = (1.0, 1.5, 2.0, 3.0, 5.0)
"""Thresholds of the fast_p curve (KernelBench): share of all tasks at least so fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A geometric mean over tasks and its bootstrap interval; None for fewer than two tasks."""

    value: float
    ci95: tuple[float, float] | None
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSummary:
    """What one tier comes to over a group of tasks."""

    tasks: int
    """All tasks of the group."""
    unclamped: Mean | None
    clamped: Mean | None
    over_stock: Mean | None
    """Over the tasks where a stock setting was judged."""
    without_correct: tuple[str, ...]
    """Tasks without a correct candidate at this tier: 1.0 in clamped, absent from unclamped."""
    slower: tuple[str, ...]
    """Tasks whose best is slower than eager: 1.0 in clamped, as measured in unclamped."""
    fast_p: Mapping[float, float]


def geometric_mean(values: Sequence[float], seed: int = 0) -> Mean | None:
    """The mean of positive speedups with a 95 % percentile bootstrap over tasks, or None."""
    if not values:
        return None
    logs = np.log(np.asarray(values, dtype=np.float64))
    interval = None
    if len(values) > 1:
        picks = np.random.default_rng(seed).integers(0, len(logs), (RESAMPLES, len(logs)))
        low, high = np.percentile(logs[picks].mean(axis=1), (2.5, 97.5))
        interval = (math.exp(low), math.exp(high))
    return Mean(value=math.exp(float(logs.mean())), ci95=interval, tasks=len(values))


def summarise(
    speedups: Mapping[str, float | None], stock: Mapping[str, float | None]
) -> TierSummary:
    """One tier over a group: task name to its best speedup and to its speedup over stock.

    None means no correct candidate (in `speedups`) and no stock setting judged (in `stock`).
    """
    correct = {name: s for name, s in speedups.items() if s is not None}
    total = len(speedups)
    return TierSummary(
        tasks=total,
        unclamped=geometric_mean(list(correct.values())),
        clamped=geometric_mean([max(1.0, s or 1.0) for s in speedups.values()]),
        over_stock=geometric_mean([s for s in stock.values() if s is not None]),
        without_correct=tuple(name for name, s in speedups.items() if s is None),
        slower=tuple(name for name, s in correct.items() if s < 1.0),
        fast_p={p: sum(s >= p for s in correct.values()) / total for p in REACHED if total},
    )
