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
    Changed,
    Extent,
    SegmentContent,
    SegmentName,
    checked_slug,
    journal_folder,
    list_segments,
    read_segment,
)
from pike_hpc.journal.snapshot import Snapshot
from pike_hpc.records import ControllerStarted, PikeError


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The replay of one task's segments."""

    events: tuple[Stamped, ...] = ()
    """Those after what the snapshot covers; all where there is none."""
    snapshot: Snapshot | None = None
    """What was made of the first events, where that still holds."""
    extents: Mapping[str, Extent] = field(default_factory=dict)
    """Segment name to what of it counts, the oldest first."""
    torn: Mapping[str, int] = field(default_factory=dict)
    """Segment name to the bytes of its ignored torn last line."""

    @property
    def counts(self) -> dict[str, int]:
        """Segment name to the number of its events that count."""
        return {name: extent.events for name, extent in self.extents.items()}


def read_history(run_dir: Path, slug: str, snapshot: Snapshot | None = None) -> History:
    """The replay of the segments that exist now. A task without segments has an empty one.

    A snapshot that is not of these very segments is passed over. Raises PikeError for damage,
    UsageError for another version's files.
    """
    if snapshot is not None:
        try:
            return _read_history(run_dir, slug, snapshot)
        except (Changed, FileNotFoundError):
            pass
    return _read_history(run_dir, slug, None)


def _read_history(run_dir: Path, slug: str, snapshot: Snapshot | None) -> History:
    """As `read_history`; raises Changed or FileNotFoundError where the snapshot does not hold."""
    names = list(list_segments(run_dir, slug))
    folder = journal_folder(run_dir)
    known = dict(snapshot.covers) if snapshot is not None else {}
    torn: dict[str, int] = {}
    while names:
        newest = names.pop()
        content = _content(folder, newest, known.get(str(newest)))
        if content.torn_bytes:
            torn[str(newest)] = content.torn_bytes
        if not content.extent.events:
            continue
        if str(newest) in known:
            inherited = {name: part.events for name, part in known.items() if name != str(newest)}
        else:
            inherited = dict(_head(folder, newest, content).inherited)
        _require_beginning(known, inherited, newest)
        parts = {**_inherited(folder, newest, inherited, known), str(newest): content}
        return History(
            events=tuple(event for part in parts.values() for event in part.events),
            snapshot=snapshot,
            extents={name: part.extent for name, part in parts.items()},
            torn=torn,
        )
    if known:
        raise Changed
    return History(torn=torn)


def _require_beginning(
    known: Mapping[str, Extent], inherited: Mapping[str, int], newest: SegmentName
) -> None:
    """What is known must be the beginning of what counts: whole segments, then a part of one."""
    if not known:
        return
    counting = [name for text in inherited if (name := SegmentName.parse(text)) is not None]
    order = [str(name) for name in sorted({*counting, newest})]
    *whole, last = known
    same = all(inherited.get(name) == known[name].events for name in whole)
    within = known[last].events <= inherited.get(last, known[last].events)
    if list(known) != order[: len(known)] or not same or not within:
        raise Changed


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


def _content(folder: Path, name: SegmentName, known: Extent | None) -> SegmentContent:
    try:
        return read_segment(folder / str(name), name.epoch, known=known)
    except FileNotFoundError:
        # Its controller found a newer listing and withdrew between our listing and now.
        return SegmentContent()


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
    folder: Path, heir: SegmentName, counts: Mapping[str, int], known: Mapping[str, Extent]
) -> dict[str, SegmentContent]:
    """What counts of older segments, oldest epoch first."""
    here = {str(name): name for name in list_segments(folder.parent, heir.slug)}
    missing = [name for name in counts if name not in here]
    if missing:
        raise _incomplete(folder, missing[0], heir, 0, counts[missing[0]])
    parts: dict[str, SegmentContent] = {}
    for name in sorted(here[text] for text in counts):
        wanted = counts[str(name)]
        path = folder / str(name)
        content = read_segment(path, name.epoch, limit=wanted, known=known.get(str(name)))
        if content.extent.events != wanted:
            raise _incomplete(folder, str(name), heir, content.extent.events, wanted)
        parts[str(name)] = content
    return parts


def _incomplete(folder: Path, name: str, heir: SegmentName, found: int, wanted: int) -> PikeError:
    return PikeError(
        f"the journal is incomplete: {found} of the {wanted} events that epoch {heir.epoch} "
        f"went on from are here",
        where=str(folder / name),
        valid=f"every segment named in the first line of {heir}",
        fix="copy the whole journal folder again from where the run was made",
    )
