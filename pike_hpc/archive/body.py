"""An event as a small JSON body plus, for some kinds, one long text kept apart.

Sources, logs and answers repeat and are what people look for, so they live in stores of their
own. `join` undoes `split` exactly, text that is no valid Unicode included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pike_hpc.records import EVENT_TYPES, CodecError, Event, decode, encode

SOURCE, LOG, ANSWER, BODY = "source", "log", "answer", "event"
STORES = (SOURCE, LOG, ANSWER, BODY)
"""Names under /blobs."""

_TEXT_OF: dict[str, tuple[str, tuple[str, ...]]] = {
    "TaskOpened": (SOURCE, ("task", "source")),
    "Proposed": (SOURCE, ("source",)),
    "Evaluated": (LOG, ("result", "log_tail")),
    "QueryAnswered": (ANSWER, ("text",)),
}
"""Event type to the store of its text and where in the event it sits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEvent:
    """The parts of an event as they are stored."""

    kind: str
    body: bytes
    store: str | None = None
    text: bytes = b""


def text_store(kind: str) -> str | None:
    """The store in which events of this kind keep their long text."""
    place = _TEXT_OF.get(kind)
    return place[0] if place else None


def to_bytes(text: str) -> bytes:
    """UTF-8 that also takes lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """What `to_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


def split(event: Event) -> SplitEvent:
    """The stored form of an event."""
    kind = type(event).__name__
    data = encode(event)
    place = _TEXT_OF.get(kind)
    if place is None:
        return SplitEvent(kind=kind, body=_dump(data))
    store, keys = place
    holder = _holder(data, keys)
    text = holder[keys[-1]]
    holder[keys[-1]] = ""
    return SplitEvent(kind=kind, body=_dump(data), store=store, text=to_bytes(text))


def join(parts: SplitEvent) -> Event:
    """The event that was split. Raises CodecError."""
    cls = EVENT_TYPES.get(parts.kind)
    if cls is None:
        raise CodecError(f"unknown event {parts.kind!r}", valid=", ".join(EVENT_TYPES))
    place = _TEXT_OF.get(parts.kind)
    try:
        data = json.loads(to_text(parts.body))
        if place is not None:
            _holder(data, place[1])[place[1][-1]] = to_text(parts.text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CodecError(f"not the body of an event: {error}", where=parts.kind) from None
    event: Event = decode(cls, data)
    return event


def _holder(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys[:-1]:
        data = data[key]
    return data


def _dump(data: Any) -> bytes:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return to_bytes(text)
