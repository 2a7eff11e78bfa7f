"""Verdict: what choosing needs of a result. The whole result may lie on disk.

A tuple: a search has thousands, and they are made anew for each look at it.
"""

from __future__ import annotations

from typing import NamedTuple

from pike_hpc.records import Environment, EvalResult, EvalStatus, Tier


class Verdict(NamedTuple):
    """The part of an EvalResult by which candidates are ranked and branches end."""

    status: EvalStatus
    tier: Tier | None
    speedup: float | None
    """None where it was not timed."""
    tags: tuple[str, ...]
    lane_s: float
    environment: Environment

    @classmethod
    def of(cls, result: EvalResult) -> Verdict:
        """That part of a result."""
        return cls(
            status=result.status,
            tier=result.tier,
            speedup=result.timing.speedup if result.timing is not None else None,
            tags=result.tags,
            lane_s=result.lane_s,
            environment=result.environment,
        )
