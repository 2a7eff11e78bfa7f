"""A page that judge and runner both map: words that say what is asked and what was done.

For calls whose latency a pipe's wake-up would hide: both sides spin on their
word, which takes about one microsecond. Words are 8 bytes, written at once, on cache lines of
their own. The key carries the number of its ring, so that no order of arrival is relied on. The
judge believes nothing of the other side's word but that it equals what it waits for.
"""

from __future__ import annotations

import mmap

PAGE_BYTES = 4096

_BELL, _KEY, _DONE = 0, 16, 32
"""Index of each word: 128 bytes apart, which is two cache lines."""

_RUNG_BITS, _TAG_BITS = 40, 16
_RUNG, _TAG = (1 << _RUNG_BITS) - 1, (1 << _TAG_BITS) - 1


class Page:
    """The words, at either end. A ring is numbered, so that an old answer is no answer."""

    def __init__(self, fd: int) -> None:
        """Map the page of a descriptor, which may be closed afterwards."""
        self._words = memoryview(mmap.mmap(fd, PAGE_BYTES)).cast("Q")
        self._rung = 0

    def ring(self, op: int, place: int, key: int) -> None:
        """Ask for `op` on `place` (below 65,536) with `key` (48 bits)."""
        self._rung = (self._rung + 1) & _RUNG
        self._words[_KEY] = key << _TAG_BITS | self._rung & _TAG
        self._words[_BELL] = self._rung << 24 | place << 8 | op

    def answered(self) -> int | None:
        """The code that answers the last ring; None while it is not there."""
        done = self._words[_DONE]
        return done & 0xFF if done >> 8 == self._rung else None

    def asked(self) -> tuple[int, int, int] | None:
        """(op, place, key) of a new ring, which takes it; None while there is none."""
        bell = self._words[_BELL]
        if bell >> 24 == self._rung:
            return None
        key = self._words[_KEY]
        if key & _TAG != bell >> 24 & _TAG:
            return None
        self._rung = bell >> 24
        return bell & 0xFF, bell >> 8 & 0xFFFF, key >> _TAG_BITS

    def answer(self, code: int) -> None:
        """Answer the ring that was taken."""
        self._words[_DONE] = self._rung << 8 | code
