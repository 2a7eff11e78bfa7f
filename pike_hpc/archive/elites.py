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
    retimes = by_attempt(record.retimes)
    names = [verdict.result.candidate_id for verdict in retimes]
    return tuple(
        Elite(
            searched=searched[name].result if name in searched else None,
            retimed=verdict.result,
            attempts=names.count(name),
            time=verdict.time,
        )
        for name, verdict in standing(retimes).items()
    )


def by_attempt(verdicts: Iterable[StampedResult]) -> tuple[StampedResult, ...]:
    """Verdicts of one run, those of the n-th time that a candidate was judged before the next's."""
    return tuple(sorted(verdicts, key=lambda verdict: verdict.result.key.retime))


def standing(verdicts: Iterable[StampedResult]) -> Mapping[str, StampedResult]:
    """Candidate id to its last verdict that decided something, else its first.

    `verdicts` of one run in the order of its journal or `by_attempt`, never by its clocks: a search
    goes on at another host, which may be minutes behind.
    """
    latest: dict[str, StampedResult] = {}
    for verdict in verdicts:
        name = verdict.result.candidate_id
        if verdict.result.status.decides or name not in latest:
            latest[name] = verdict
    return latest
