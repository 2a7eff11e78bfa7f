"""Candidates that were judged again: the search's verdict and the one that counts, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pike_hpc.archive.record import StampedResult, TaskRecord
from pike_hpc.records import EvalResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Elite:
    """One candidate that was judged again."""

    searched: EvalResult | None
    """What the search measured; the reason why it was judged again."""
    retimed: EvalResult
    """What counts."""
    attempts: int
    """How often it was judged again."""
    time: float
    """When `retimed` became final."""


def elites(record: TaskRecord) -> tuple[Elite, ...]:
    """In the order in which they were first judged again."""
    searched = standing(record.results)
    names = [verdict.result.candidate_id for verdict in record.retimes]
    return tuple(
        Elite(
            searched=searched[name].result if name in searched else None,
            retimed=verdict.result,
            attempts=names.count(name),
            time=verdict.time,
        )
        for name, verdict in standing(record.retimes).items()
    )


def standing(verdicts: Iterable[StampedResult]) -> Mapping[str, StampedResult]:
    """Candidate id to its latest verdict that decided something, else its latest one.

    `verdicts` in the order of time.
    """
    latest: dict[str, StampedResult] = {}
    for verdict in verdicts:
        name = verdict.result.candidate_id
        if verdict.result.status.decides or name not in latest:
            latest[name] = verdict
    return latest
