"""Snapshots: what somebody made of the first events of a task, beside its segments.

A snapshot only saves time. It names the very bytes that it was made of, by segment, size and
CRC-32, and who made it; where any of that does not match, where it is torn, or where it is not
there, the events are read instead. So it is not synced, and nothing is lost with it. A file:

    {"v":1,"by":"…","covers":[["segment",events,bytes,crc],…]}   one line
    …                                                            the body, anything
    64 hex digits                                                sha256 of all before it
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.journal.disk import Disk, write_all
from pike_hpc.journal.segment import Extent, journal_folder

_VERSION = 1
_DIGEST_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was made of the events that it covers."""

    covers: Mapping[str, Extent]
    """Segment name to the beginning of it that is covered, the oldest first."""
    body: bytes


def snapshot_path(run_dir: Path, slug: str) -> Path:
    """Where a task's snapshot lies."""
    return journal_folder(run_dir) / f"{slug}.snapshot"


def read_snapshot(run_dir: Path, slug: str, made_by: str) -> Snapshot | None:
    """The whole snapshot that `made_by` left; None where there is none. Never raises."""
    try:
        data = snapshot_path(run_dir, slug).read_bytes()
    except OSError:
        return None
    text, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    head, _, body = text.partition(b"\n")
    try:
        document = json.loads(head)
        if (document["v"], document["by"]) != (_VERSION, made_by):
            return None
        covers = {
            str(name): Extent(events=events, size=size, crc=crc)
            for name, events, size, crc in document["covers"]
        }
    except (ValueError, KeyError, TypeError):
        return None
    return Snapshot(covers=covers, body=body) if covers else None


def write_snapshot(
    run_dir: Path, slug: str, snapshot: Snapshot, *, made_by: str, disk: Disk
) -> None:
    """Replace the task's snapshot in one step. Raises OSError; what was there then stays."""
    covers = [[name, e.events, e.size, e.crc] for name, e in snapshot.covers.items()]
    document = {"v": _VERSION, "by": made_by, "covers": covers}
    text = json.dumps(document, separators=(",", ":")).encode() + b"\n" + snapshot.body
    path = snapshot_path(run_dir, slug)
    beside = path.with_name(path.name + ".new")
    fd = _create(beside, disk)
    try:
        write_all(disk, fd, text + hashlib.sha256(text).hexdigest().encode(), 0)
    finally:
        disk.close(fd)
    disk.replace(beside, path)


def _create(path: Path, disk: Disk) -> int:
    try:
        return disk.create(path)
    except FileExistsError:  # of one that was killed while writing it
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
        return disk.create(path)
