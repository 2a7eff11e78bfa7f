"""Figures over many tasks: geometric means, their intervals, and shares of tasks reached.

Pure. Both ways of averaging are always given side by side, because each alone misleads:
`unclamped` is the mean over tasks with a correct candidate, as measured, slow-downs included;
`clamped` is the mean over all tasks with max(1, speedup), where a task without a correct
candidate counts as 1.0: what a person gets who keeps eager wherever it is not beaten. A task whose
best was not timed again is in no mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
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
    not_retimed: tuple[str, ...]
    """Tasks whose best was not timed again: in no mean."""
    fast_p: Mapping[float, float]
    """Of the tasks that are in `clamped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionBias:
    """By how much the search's winners looked too fast."""

    median: float | None
    """Of the search's speedup over the one measured again; None where none passed again."""
    winners: int
    """Those that passed again: one a task and tier, each program of a task once."""
    lost: int
    """Those that did not."""


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


def selection_bias(ratios: Sequence[float], lost: int) -> SelectionBias:
    """From the ratios of every task's winners and how many lost their place."""
    median = statistics.median(ratios) if ratios else None
    return SelectionBias(median=median, winners=len(ratios), lost=lost)


def summarise(
    speedups: Mapping[str, float | None],
    stock: Mapping[str, float | None],
    not_retimed: Collection[str] = (),
) -> TierSummary:
    """One tier over a group: task name to its best speedup and to its speedup over stock.

    None means no correct candidate (in `speedups`) and no stock setting judged (in `stock`).
    Those in `not_retimed` have a best that was not timed again.
    """
    counted = {name: s for name, s in speedups.items() if name not in not_retimed}
    correct = {name: s for name, s in counted.items() if s is not None}
    over = [s for name, s in stock.items() if s is not None and name not in not_retimed]
    total = len(counted)
    return TierSummary(
        tasks=len(speedups),
        unclamped=geometric_mean(list(correct.values())),
        clamped=geometric_mean([max(1.0, s or 1.0) for s in counted.values()]),
        over_stock=geometric_mean(over),
        without_correct=tuple(name for name, s in counted.items() if s is None),
        slower=tuple(name for name, s in correct.items() if s < 1.0),
        not_retimed=tuple(name for name in speedups if name in not_retimed),
        fast_p={p: sum(s >= p for s in correct.values()) / total for p in REACHED if total},
    )
