"""How long the reference takes with no candidate there to slow it: not yet, or no longer.

Whatever a candidate leaves on a GPU, in kernels or in copies, it leaves only while it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_plan import NULL_WINDOWS, SLOW_MS, affordable
from pike_hpc.evaluate.judge_side import Side, Window
from pike_hpc.evaluate.nvml_guard import Guard
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.statistics import Null, without_null

WINDOWS = 7
"""Of one call each; one suffices of a call that takes long."""
FIRST = 2
"""Calls of which the faster says whether a call takes long: the first of all may wait for much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What windows of one call showed."""

    latency_ms: float
    """The constant taken off."""
    nulls_ms: Mapping[int, float]
    """The constant, by how many calls share a window."""


def time_alone(
    reference: RunnerLink,
    fresh_inputs: Callable[[int], Sequence[torch.Tensor]],
    guard: Guard,
    *,
    bounded: bool = False,
    goes_on: bool = False,
) -> Alone | None:
    """Latency of one call and the constant, as `Stopwatch` tells them. Raises RunnerFailed.

    Nor is more of the constant taken off than the guard knows that it can be: what it is over in
    windows of one call and in shared ones, since a candidate's may have been of either kind.

    Args:
        reference: its runner, holding the judging weights.
        fresh_inputs: so many inputs that were never seen.
        guard: watches it. What it says does not count is None.
        bounded: see `Null`.
        goes_on: see `Side`.
    """
    guard.begin()
    side = Side(reference, goes_on=goes_on)
    side.make_room(1, 1)

    def fresh(count: int, calls: int) -> list[Window]:
        staged = [reference.staged(packed) for packed in fresh_inputs(count * calls)]
        return [tuple(staged[i * calls : (i + 1) * calls]) for i in range(count)]

    seen = fresh(1, 1)
    slow = min(side.run(seen)[0] for _ in range(FIRST)) > SLOW_MS
    warmth = None if slow else seen[0]
    taken = [side.run(fresh(1, 1), warmth=warmth)[0] for _ in range(1 if slow else WINDOWS)]

    def null(calls: int) -> Null:
        windows = fresh(affordable(reference, NULL_WINDOWS, calls), calls)
        found = side.run(windows, Op.NULL, keep=False, warmth=warmth)
        return Null.of(found, bounded=bounded)

    nulls = {calls: null(calls) for calls in {1, reference.places}}
    nulls_ms = {calls: null.ms for calls, null in nulls.items()}
    own = replace(nulls[1], ms=nulls_ms[1] - guard.over_ms(nulls_ms))
    found = Alone(latency_ms=without_null(median(taken), own), nulls_ms=nulls_ms)
    return found if guard.after(reference_last=True) else None
