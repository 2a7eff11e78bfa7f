"""A record on disk with its checksum: torn, altered and foreign bytes are told from a record."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from pike_hpc.records import CodecError, from_json, to_json

R = TypeVar("R")

_VERSION = "1"


def seal(record: object) -> bytes:
    """One header line (kind, version, sha256 of the rest), then the record as JSON."""
    body = to_json(record).encode("utf-8", "surrogatepass")
    return _header(type(record), body) + body


def unseal(kind: type[R], data: bytes) -> R:
    """The record that `seal` wrote. Raises CodecError for anything else."""
    header, newline, body = data.partition(b"\n")
    if header + newline != _header(kind, body):
        raise CodecError(f"not a whole {kind.__name__}: the checksum in its first line differs")
    return from_json(kind, body.decode("utf-8", "surrogatepass"))


def _header(kind: type, body: bytes) -> bytes:
    checksum = hashlib.sha256(body).hexdigest()
    return f"pike-hpc {kind.__name__} {_VERSION} {checksum}\n".encode()
