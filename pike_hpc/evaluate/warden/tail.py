"""The end of what a runner prints."""

from __future__ import annotations

import collections

TAIL_BYTES = 64 * 1024
"""How much of a runner's output is kept, from its end."""


class Tail:
    """The last TAIL_BYTES of a stream."""

    def __init__(self) -> None:
        self._parts: collections.deque[bytes] = collections.deque()
        self._size = 0

    def add(self, part: bytes) -> None:
        """Append, forgetting what is too old."""
        self._parts.append(part)
        self._size += len(part)
        while self._parts and self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def text(self) -> str:
        """What is kept, undecodable bytes replaced."""
        return b"".join(self._parts)[-TAIL_BYTES:].decode("utf-8", "replace")
