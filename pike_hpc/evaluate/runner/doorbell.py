"""A page that judge and runner both map: one word says what is asked, one what was done.

For windows whose latency a pipe's wake-up (30 us to 300 us) would hide: both sides spin on their
word, which takes about one microsecond. Words are 8 bytes, written at once, on cache lines of
their own. The judge believes of the other word only that it equals what it waits for.
"""

from __future__ import annotations

import mmap

PAGE_BYTES = 4096

_BELL, _DONE = 0, 16
"""Index of each word: 128 bytes apart, which is two cache lines."""

_MASK = (1 << 40) - 1


class Page:
    """The two words, at either end. A ring is numbered, so that an old answer is no answer."""

    def __init__(self, fd: int) -> None:
        """Map the page of a descriptor, which may be closed afterwards."""
        self._words = memoryview(mmap.mmap(fd, PAGE_BYTES)).cast("Q")
        self._rung = 0

    def ring(self, op: int, place: int) -> None:
        """Ask for `op` on `place` of the outputs, each below 256 and 65,536."""
        self._rung = (self._rung + 1) & _MASK
        self._words[_BELL] = self._rung << 24 | place << 8 | op

    def answered(self) -> int | None:
        """The byte that answers the last ring; None while there is none."""
        word = self._words[_DONE]
        return word & 0xFF if word >> 8 == self._rung else None

    def asked(self) -> tuple[int, int] | None:
        """(op, place) of a new ring, which takes it; None while there is none."""
        word = self._words[_BELL]
        if word >> 24 == self._rung:
            return None
        self._rung = word >> 24
        return word & 0xFF, word >> 8 & 0xFFFF

    def answer(self, code: int) -> None:
        """Answer the ring that was taken."""
        self._words[_DONE] = self._rung << 8 | code
