"""Segment files: one per controller epoch of a task, `<slug>.e<epoch>.<writer>.jsonl`.

A segment is written by exactly one controller and never by two, so a torn write can only be
its last line. Reading tolerates exactly that and refuses everything else. Knows nothing of how
epochs follow one another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.journal.disk import explain
from pike_hpc.journal.line import (
    FORMAT_VERSION,
    BrokenLine,
    ForeignVersion,
    Stamped,
    from_line,
)
from pike_hpc.records import PikeError, UsageError

_NAME = re.compile(r"(?P<slug>.+)\.e(?P<epoch>[0-9]{6,})\.(?P<writer>[^.]+)\.jsonl")
_SLUG = re.compile(r"[^./\0][^/\0]*")
_SLUG_BYTES = 160
"""With epoch, writer and suffix a segment's name stays under the usual 255 bytes."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The parts of a segment's file name, in the order of time."""

    epoch: int
    writer: str
    slug: str

    def __str__(self) -> str:
        return f"{self.slug}.e{self.epoch:06d}.{self.writer}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContent:
    """The events of a segment and how many bytes of a torn last line follow them."""

    events: tuple[Stamped, ...]
    torn_bytes: int = 0


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


def list_segments(run_dir: Path) -> tuple[SegmentName, ...]:
    """Every segment in the run, oldest epoch first. A folder not made yet holds none."""
    return tuple(sorted(_names(journal_folder(run_dir))))


def _names(folder: Path) -> Iterator[SegmentName]:
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, folder, "list the journal") from None
    for entry in entries:
        parts = _NAME.fullmatch(entry)
        # .nfs… files are names the NFS client keeps for files removed while open.
        if parts and not entry.startswith("."):
            yield SegmentName(int(parts["epoch"]), parts["writer"], parts["slug"])


def read_segment(path: Path, epoch: int, limit: int | None = None) -> SegmentContent:
    """The events of a segment, at most `limit` of them; what lies beyond is not looked at.

    Raises PikeError naming file and line for a damaged line that is not the last, UsageError
    for another version's, FileNotFoundError when there is no such segment.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain(error, path, "read the journal") from None
    lines = data.split(b"\n")
    tail = lines.pop()
    events: list[Stamped] = []
    for number, line in enumerate(lines if limit is None else lines[:limit], start=1):
        try:
            events.append(from_line(line, epoch=epoch, seq=number - 1))
        except ForeignVersion as error:
            raise _foreign(path, number, error) from None
        except BrokenLine as error:
            if number == len(lines) and not tail:
                return SegmentContent(events=tuple(events), torn_bytes=len(line) + 1)
            raise _damaged(path, number, error) from None
    whole = limit is None or len(lines) < limit
    return SegmentContent(events=tuple(events), torn_bytes=len(tail) if whole else 0)


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
