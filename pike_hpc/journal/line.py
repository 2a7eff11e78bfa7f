"""One event as one line of a segment, guarded by a checksum.

A line is `{"v":1,"n":seq,"t":time,"k":kind,"e":{…},"c":"crc32 of all bytes before ,"c""}`. The
checksum covers bytes, not values, so that a reader need not write JSON the way we do. Text that
is no valid Unicode (lone surrogates in a hostile source) is kept exactly, as three-byte UTF-8.
Knows nothing of files.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pike_hpc.records import EVENT_TYPES, CodecError, Event, decode, encode

FORMAT_VERSION = 1
"""Raised when a reader of the old format would misread a line."""

_TAIL = re.compile(rb',"c":"([0-9a-f]{8})"}')
_TAIL_BYTES = 16
_VERSION = re.compile(rb'\A\{"v":([0-9]{1,9})[,}]')


class Place(NamedTuple):
    """Where an event's line lies: enough to read it again. A tuple: a large task has thousands."""

    segment: str
    """The file's name."""
    seq: int
    offset: int
    """Bytes before the line."""
    size: int
    """Bytes of the line, without its newline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """An event with its place in the task's history."""

    time: float
    """Unix time on the clock of the controller that wrote it."""
    epoch: int
    seq: int
    """Position within its epoch, from 0."""
    event: Event
    place: Place | None = field(default=None, compare=False)
    """None where it was not read from a segment or written to one."""


class BrokenLine(Exception):
    """The bytes are not a whole line. Never leaves the journal package."""


class ForeignVersion(Exception):
    """The line is whole but written by another version. Never leaves the journal package."""


def to_line(stamped: Stamped) -> bytes:
    """The line with its newline. The epoch is in the segment's name, not in the line."""
    record = {
        "v": FORMAT_VERSION,
        "n": stamped.seq,
        "t": stamped.time,
        "k": type(stamped.event).__name__,
        "e": encode(stamped.event),
    }
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    body = text.encode("utf-8", "surrogatepass")[:-1]
    return body + b',"c":"%08x"}\n' % zlib.crc32(body)


def from_line(line: bytes, *, epoch: int, seq: int, place: Place | None = None) -> Stamped:
    """The event in a line without its newline, which lies at `place`.

    Raises BrokenLine for torn or altered bytes, ForeignVersion for a line of another format.
    """
    tail = _TAIL.fullmatch(line[-_TAIL_BYTES:])
    if tail is None or zlib.crc32(memoryview(line)[:-_TAIL_BYTES]) != int(tail[1], 16):
        other = _VERSION.match(line)
        if other and int(other[1]) != FORMAT_VERSION and _is_json(line):
            raise ForeignVersion(f"format {int(other[1])}")
        raise BrokenLine("its checksum does not match")
    record = _parse(line)
    version = record.get("v")
    if version != FORMAT_VERSION:
        raise ForeignVersion(f"format {version}")
    if record.get("n") != seq:
        raise BrokenLine(f"it is event {record.get('n')} where event {seq} belongs")
    kind = EVENT_TYPES.get(str(record.get("k")))
    if kind is None:
        raise ForeignVersion(f"event {record.get('k')!r}")
    try:
        event: Event = decode(kind, record.get("e"))
        time = record.get("t")
        if type(time) is not float:
            time = decode(float, time, "t")
    except CodecError as error:
        raise ForeignVersion(f"a field this version does not know: {error.what}") from None
    return Stamped(time=time, epoch=epoch, seq=seq, event=event, place=place)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise BrokenLine("it is not JSON") from None
    if not isinstance(record, dict):
        raise BrokenLine("it is not an object")
    return record


def _is_json(line: bytes) -> bool:
    try:
        _parse(line)
    except BrokenLine:
        return False
    return True
