"""Several sealed records in one file: written and put on disk once, named once for each.

A batch begins with a line of the names and lengths of its members. A file with one record has
no such line. Knows nothing of the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from pike_hpc.records import CodecError

BATCH_MAX = 16
"""Members of one file. What a damaged file costs, and what a reader reads for one member."""

_PREFIX = b"pike-hpc batch 1 "
_LONGEST = 12
"""Digits of a length."""


def pack(members: Sequence[tuple[str, bytes]]) -> bytes:
    """One file for (request id, sealed record) pairs; a single record is its own file."""
    if len(members) == 1:
        return members[0][1]
    index = " ".join(f"{name}:{len(data)}" for name, data in members)
    return _PREFIX + index.encode() + b"\n" + b"".join(data for _, data in members)


def member(data: bytes, request_id: str) -> bytes:
    """The sealed record of one request in a file's bytes. Raises CodecError where none is."""
    if not data.startswith(_PREFIX):
        return data
    first, newline, _ = data.partition(b"\n")
    start = len(first) + len(newline)
    for entry in first[len(_PREFIX) :].decode("ascii", "replace").split(" "):
        name, _, length = entry.partition(":")
        if not (length.isdecimal() and len(length) <= _LONGEST):
            raise CodecError("a batch whose first line is not a list of its members")
        if name == request_id:
            return data[start : start + int(length)]
        start += int(length)
    raise CodecError("a batch without this request in it")
