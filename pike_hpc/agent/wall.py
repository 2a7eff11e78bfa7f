"""How much of the wall budget a run has used: the time that its controllers were at work.

A run that lies overnight uses nothing. Derived from the journals, so that a kill loses at most
the time since the last event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pike_hpc.journal import Stamped


def active_seconds(journals: Iterable[Sequence[Stamped]]) -> float:
    """Seconds from first to last event of each epoch, added up; the longest over the tasks."""
    longest = 0.0
    for events in journals:
        spans: dict[int, tuple[float, float]] = {}
        for stamped in events:
            first, _ = spans.get(stamped.epoch, (stamped.time, stamped.time))
            spans[stamped.epoch] = (first, stamped.time)
        longest = max(longest, sum(last - first for first, last in spans.values()))
    return longest
