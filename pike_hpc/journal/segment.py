"""Segment files: one per controller epoch of a task, `<slug>.e<epoch>.<writer>.jsonl`.

A segment is written by exactly one controller and never by two, so a torn write can only be
its last line. Reading tolerates exactly that and refuses everything else. Knows nothing of how
epochs follow one another.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pike_hpc.journal.disk import explain
from pike_hpc.journal.line import (
    FORMAT_VERSION,
    BrokenLine,
    ForeignVersion,
    Place,
    Stamped,
    from_line,
)
from pike_hpc.records import Event, PikeError, UsageError

_NAME = re.compile(r"(?P<slug>.+)\.e(?P<epoch>[0-9]{6,})\.(?P<writer>[^.]+)\.jsonl")
_SLUG = re.compile(r"[^./\0][^/\0]*")
_SLUG_BYTES = 160
"""With epoch, writer and suffix a segment's name stays under the usual 255 bytes."""
_CHUNK_BYTES = 1 << 17
"""Stays in a core's cache between its reading and its CRC."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The parts of a segment's file name, in the order of time."""

    epoch: int
    writer: str
    slug: str

    def __str__(self) -> str:
        return f"{self.slug}.e{self.epoch:06d}.{self.writer}.jsonl"

    @classmethod
    def parse(cls, text: str) -> SegmentName | None:
        """The parts of a file's name; None where no segment is called so."""
        # .nfs… files are names the NFS client keeps for files removed while open.
        parts = None if text.startswith(".") else _NAME.fullmatch(text)
        return cls(int(parts["epoch"]), parts["writer"], parts["slug"]) if parts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """So much of a segment, from its beginning."""

    events: int = 0
    size: int = 0
    """Bytes."""
    crc: int = 0
    """CRC-32 of these bytes."""

    def and_line(self, line: bytes) -> Extent:
        """With one more line, its newline included."""
        return Extent(
            events=self.events + 1, size=self.size + len(line), crc=zlib.crc32(line, self.crc)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContent:
    """The events of a segment and how many bytes of a torn last line follow them."""

    events: tuple[Stamped, ...] = ()
    """Those after what was known already."""
    extent: Extent = Extent()
    """What was known, and these events."""
    torn_bytes: int = 0


class Changed(Exception):
    """A segment does not begin with the bytes that an extent tells of. Stays in this package."""


def task_slug(task_key: str) -> str:
    """The file-name form of SUITE/ID. Raises UsageError when no file can be called so."""
    return checked_slug(task_key.replace("/", "_"))


def checked_slug(slug: str) -> str:
    """The slug itself, if a file can be called so."""
    if not _SLUG.fullmatch(slug) or len(os.fsencode(slug)) > _SLUG_BYTES:
        raise UsageError(
            f"{slug[:80]!r} cannot name a journal",
            valid=f"1 to {_SLUG_BYTES} bytes, no '/', no leading '.'",
            fix="rename the suite or the task file",
        )
    return slug


def writer_slug(writer: str) -> str:
    """The file-name form of a writer: letters, digits, '-' and '_' only, at most 60."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", writer)[:60] or "writer"


def journal_folder(run_dir: Path) -> Path:
    """RUN/journal."""
    return run_dir / "journal"


def list_segments(run_dir: Path, slug: str | None = None) -> tuple[SegmentName, ...]:
    """Every segment in the run, or of one task, oldest epoch first. No folder holds none."""
    return tuple(sorted(_names(journal_folder(run_dir), slug)))


def _names(folder: Path, slug: str | None) -> Iterator[SegmentName]:
    try:
        with os.scandir(folder) as found:
            entries = [entry.name for entry in found]
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, folder, "list the journal") from None
    beginning = "" if slug is None else f"{slug}.e"
    for entry in entries:
        if entry.startswith(beginning):
            name = SegmentName.parse(entry)
            if name is not None and slug in (None, name.slug):
                yield name


def read_segment(
    path: Path, epoch: int, limit: int | None = None, known: Extent | None = None
) -> SegmentContent:
    """The events of a segment, at most its first `limit`; what lies beyond is not looked at.

    Of what is `known` only the bytes are checked: its events are left out. Raises PikeError
    naming file and line for a damaged line that is not the last, UsageError for another
    version's, FileNotFoundError when there is no such segment, Changed where it does not begin
    with what is known.
    """
    known = known or Extent()
    try:
        with path.open("rb") as file:
            _pass_over(file, known)
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain(error, path, "read the journal") from None
    lines = data.split(b"\n")
    tail = lines.pop()
    last = known.events + len(lines)
    wanted = lines if limit is None else lines[: max(limit - known.events, 0)]
    events: list[Stamped] = []
    offset = known.size
    torn_bytes = len(tail) if limit is None or last < limit else 0
    for number, line in enumerate(wanted, start=known.events + 1):
        place = Place(segment=path.name, seq=number - 1, offset=offset, size=len(line))
        try:
            events.append(from_line(line, epoch=epoch, seq=number - 1, place=place))
        except ForeignVersion as error:
            raise _foreign(path, number, error) from None
        except BrokenLine as error:
            if number != last or tail:
                raise _damaged(path, number, error) from None
            torn_bytes = len(line) + 1
            break
        offset += len(line) + 1
    extent = Extent(
        events=known.events + len(events),
        size=offset,
        crc=zlib.crc32(memoryview(data)[: offset - known.size], known.crc),
    )
    return SegmentContent(events=tuple(events), extent=extent, torn_bytes=torn_bytes)


def _pass_over(file: BinaryIO, known: Extent) -> None:
    left, crc = known.size, 0
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    if left or crc != known.crc:
        raise Changed


def read_event(run_dir: Path, place: Place) -> Event:
    """The event at a place. Raises PikeError where the line there is not what it was."""
    path = journal_folder(run_dir) / place.segment
    name = SegmentName.parse(place.segment)
    assert name is not None, "a place lies in a segment"
    try:
        with path.open("rb") as file:
            file.seek(place.offset)
            line = file.read(place.size)
        return from_line(line, epoch=name.epoch, seq=place.seq).event
    except OSError as error:
        raise explain(error, path, "read the journal") from None
    except ForeignVersion as error:
        raise _foreign(path, place.seq + 1, error) from None
    except BrokenLine as error:
        raise _damaged(path, place.seq + 1, error) from None


def _damaged(path: Path, number: int, error: BrokenLine) -> PikeError:
    return PikeError(
        f"the journal is damaged: {error}",
        where=f"{path}, line {number}",
        valid="lines as their controller wrote them; only the last one may be torn",
        fix=f"restore the file from a copy; to go on without what follows: "
        f"sed -i '{number},$d' '{path}'",
    )


def _foreign(path: Path, number: int, error: ForeignVersion) -> UsageError:
    return UsageError(
        f"the journal was written by another version of pike-hpc: {error}",
        where=f"{path}, line {number}",
        valid=f"format {FORMAT_VERSION}",
        fix="upgrade: pip install --upgrade pike-hpc, or use the version in RUN/code",
    )
