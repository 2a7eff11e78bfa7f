"""Memory: what the controller of a task knows, and how it comes to know more.

The journal is written first and believed then. What a view holds of old programs and verdicts
stays on disk (`agent.shelf`), and so that the next agent need not read all events again, the view
is left beside the journal as a snapshot. That saves time and nothing else: from a snapshot and
the events after it comes the same view as from all events, and one that other code has made is
not used.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pike_hpc.agent.shelf import Shelf
from pike_hpc.journal import Place, Stamped, TaskJournal
from pike_hpc.records import EvalResult, Evaluated, Event, Proposed
from pike_hpc.search import TaskView, from_snapshot, to_snapshot

_MADE_BY = ("agent", "journal", "records", "search")
"""The packages that decide what a view is and how it is written down."""

_WORTH = 100
"""Events after which a snapshot is made anew: to read so many takes as long as to write it."""


@functools.cache
def made_by() -> str:
    """Names the code that makes views: what another one left behind is not gone on from."""
    digest = hashlib.sha256()
    for package in _MADE_BY:
        for path in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(f"{package}/{path.name}\0".encode() + path.read_bytes())
    return f"view-{digest.hexdigest()[:32]}"


class Memory:
    """The journal of a task and its view. One thread calls it."""

    def __init__(self, journal: TaskJournal, *, worth: int = _WORTH) -> None:
        """Read what has happened. A snapshot is made anew after `worth` events.

        A journal that was not opened for `made_by()` has none and gets none.
        """
        self._journal, self._worth = journal, worth
        self._sources: Shelf[str] = Shelf(self._source_at)
        self._results: Shelf[EvalResult] = Shelf(self._result_at)
        self.written = 0
        """Events written by this controller."""
        self._unsaved = 0
        self.view = self._last_view(journal.snapshot)
        *past, started = journal.take_events()
        self._learn(past)
        if self._unsaved >= self._worth:
            self._save(own=False)
        self._learn([started])

    def write(self, event: Event, *, durable: bool = True) -> None:
        """Journal an event and believe it. What is not durable must be before anyone acts on it.

        Raises TryAgainLater as the journal does; the event then does not count.
        """
        stamped = self._journal.append(event, durable=durable)
        self.written += 1
        self._learn([stamped])
        if durable:
            self.sync()

    def sync(self) -> None:
        """Make what was written durable. Raises TryAgainLater as the journal does."""
        self._journal.take_events()  # which nobody needs any more

    def require_newest(self) -> None:
        """Raise Held where another controller has taken the task over."""
        self._journal.require_newest()

    @property
    def idle(self) -> bool:
        """Whether nothing was written here."""
        return not self.written

    def close(self) -> None:
        """Give the task back, without a trace where nothing happened."""
        try:
            if not self.idle and self._unsaved >= self._worth:
                self._save(own=True)
        finally:
            self._journal.close(keep_idle=False)

    def _learn(self, events: Iterable[Stamped]) -> None:
        for stamped in events:
            self.view.apply(stamped.event)
            self._unsaved += 1
            if stamped.place is not None:
                self._put_away(stamped.event, stamped.place)

    def _put_away(self, event: Event, place: Place) -> None:
        match event:
            case Proposed(proposal=proposal):
                self._sources.put_away(proposal.candidate_id, place)
            case Evaluated(result=result):
                self._results.put_away(result.candidate_id, place)

    def _source_at(self, place: Place) -> str:
        event = self._journal.read(place)
        assert isinstance(event, Proposed), "programs lie where they were proposed"
        return event.source

    def _result_at(self, place: Place) -> EvalResult:
        event = self._journal.read(place)
        assert isinstance(event, Evaluated), "verdicts lie where they came"
        return event.result

    def _last_view(self, snapshot: bytes | None) -> TaskView:
        if snapshot is None:
            return TaskView(sources=self._sources, results=self._results)
        data = json.loads(snapshot)
        segments = data["segments"]
        for shelf, name in ((self._sources, "sources"), (self._results, "results")):
            keys, numbers, *columns = data[name]
            places = map(Place, map(segments.__getitem__, numbers), *columns)
            shelf.lie_at(dict(zip(keys, places, strict=True)))
        return from_snapshot(data["view"], self._sources, self._results)

    def _save(self, *, own: bool) -> None:
        segments: dict[str, int] = {}
        data = {
            "view": to_snapshot(self.view),
            "sources": _rows(self._sources, segments),
            "results": _rows(self._results, segments),
            "segments": list(segments),
        }
        self._journal.save(json.dumps(data, separators=(",", ":")).encode(), own=own)
        self._unsaved = 0


def _rows(shelf: Shelf[Any], segments: dict[str, int]) -> list[list[Any]]:
    """Columns: key, number of the segment, seq, offset, size."""
    places = {key: place for key, place in shelf.places.items() if place is not None}
    assert len(places) == len(shelf), "what was journalled has been put away"
    numbers = [segments.setdefault(p.segment, len(segments)) for p in places.values()]
    return [
        list(places),
        numbers,
        [p.seq for p in places.values()],
        [p.offset for p in places.values()],
        [p.size for p in places.values()],
    ]
