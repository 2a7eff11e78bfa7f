"""What happened in a task: the events of all its epochs that count, in order.

The newest epoch's first event says how many events of each older segment it inherited. Whatever
an older controller wrote after that (it was paused, thought dead, and woke up) does not count.
Reading takes no lock and is safe while a controller writes: it sees a prefix.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pike_hpc.journal.line import Stamped
from pike_hpc.journal.segment import (
    SegmentContent,
    SegmentName,
    checked_slug,
    journal_folder,
    list_segments,
    read_segment,
)
from pike_hpc.records import ControllerStarted, PikeError


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The replay of one task's segments."""

    events: tuple[Stamped, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Segment name to the number of its events in `events`."""
    torn: Mapping[str, int] = field(default_factory=dict)
    """Segment name to the bytes of its ignored torn last line."""


def read_history(run_dir: Path, slug: str) -> History:
    """The replay of the segments that exist now. A task without segments has an empty one.

    Raises PikeError for damage, UsageError for another version's files.
    """
    names = [name for name in list_segments(run_dir) if name.slug == slug]
    folder = journal_folder(run_dir)
    torn: dict[str, int] = {}
    while names:
        newest = names.pop()
        content = _content(folder, newest)
        if content.torn_bytes:
            torn[str(newest)] = content.torn_bytes
        if content.events:
            started = _head(folder, newest, content)
            older = _inherited(folder, newest, started.inherited)
            counts = {name: len(part) for name, part in older.items()}
            counts[str(newest)] = len(content.events)
            events = tuple(e for part in older.values() for e in part) + content.events
            return History(events=events, counts=counts, torn=torn)
    return History(torn=torn)


def read_task(run_dir: Path, slug: str) -> tuple[Stamped, ...]:
    """The events of a task so far, read-only; none before its first controller.

    `task_slugs` tells which tasks have begun. Raises as `read_history` does.
    """
    return read_history(run_dir, checked_slug(slug)).events


def task_slugs(run_dir: Path) -> tuple[str, ...]:
    """The tasks that have a journal, sorted."""
    return tuple(sorted({name.slug for name in list_segments(run_dir)}))


def watermark(run_dir: Path) -> dict[str, int]:
    """Segment name to its size in bytes: grows with every event, whoever wrote it."""
    folder = journal_folder(run_dir)
    sizes: dict[str, int] = {}
    for name in list_segments(run_dir):
        # A controller that found a newer epoch withdraws its empty segment.
        with contextlib.suppress(FileNotFoundError):
            sizes[str(name)] = (folder / str(name)).stat().st_size
    return sizes


def journal_digest(run_dir: Path) -> str:
    """sha256 over the watermark; equal digests mean that nothing was appended in between."""
    return hashlib.sha256(json.dumps(watermark(run_dir), sort_keys=True).encode()).hexdigest()


def _content(folder: Path, name: SegmentName) -> SegmentContent:
    try:
        return read_segment(folder / str(name), name.epoch)
    except FileNotFoundError:
        # Its controller found a newer listing and withdrew between our listing and now.
        return SegmentContent(events=())


def _head(folder: Path, name: SegmentName, content: SegmentContent) -> ControllerStarted:
    first = content.events[0].event
    if isinstance(first, ControllerStarted) and first.epoch == name.epoch:
        return first
    raise PikeError(
        f"the segment does not begin with the start of epoch {name.epoch}",
        where=f"{folder / str(name)}, line 1",
        fix="restore the file under the name its controller gave it",
    )


def _inherited(
    folder: Path, heir: SegmentName, counts: Mapping[str, int]
) -> dict[str, tuple[Stamped, ...]]:
    """The events of older segments that count, oldest epoch first."""
    known = {str(name): name for name in list_segments(folder.parent) if name.slug == heir.slug}
    missing = [name for name in counts if name not in known]
    if missing:
        raise _incomplete(folder, missing[0], heir, 0, counts[missing[0]])
    parts: dict[str, tuple[Stamped, ...]] = {}
    for name in sorted(known[text] for text in counts):
        wanted = counts[str(name)]
        content = read_segment(folder / str(name), name.epoch, limit=wanted)
        if len(content.events) != wanted:
            raise _incomplete(folder, str(name), heir, len(content.events), wanted)
        parts[str(name)] = content.events
    return parts


def _incomplete(folder: Path, name: str, heir: SegmentName, found: int, wanted: int) -> PikeError:
    return PikeError(
        f"the journal is incomplete: {found} of the {wanted} events that epoch {heir.epoch} "
        f"went on from are here",
        where=str(folder / name),
        valid=f"every segment named in the first line of {heir}",
        fix="copy the whole journal folder again from where the run was made",
    )
