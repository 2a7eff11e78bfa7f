"""The waiting requests' names as last listed, oldest first, listed again as often as it pays.

A listing of a hundred thousand names takes a tenth of a second, so it may serve many claims:
a name in it that another worker took costs one failed rename, one that came later waits for
the next listing. In a long queue workers start at different places of each block of names, so
that they don't all run for the oldest. Short queues are listed for every claim, and in strict
order. Where the names lie in several folders, a look at a long queue reads but one or some, another
one each time, and each process begins elsewhere. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from pike_hpc.mailbox.batch import BATCH_MAX

SHORT = 500
"""A queue of so many names at most is listed whenever somebody looks."""
BLOCK = 256
"""In a long queue a request may be claimed so many places before its turn."""
_REST = 20
"""A long listing is not repeated before so many times its duration: 5 % of a worker's time."""


class Line:
    """What is known of one mailbox's new/.

    `read` lists one of its `shards`, sorted; `there` says whether one name still is. `place` is any
    number, other for other processes. With `reuse_s` even short listings serve for so long: a
    client of a shared file system sees nothing newer anyway.
    """

    def __init__(
        self,
        read: Callable[[int], list[str]],
        there: Callable[[str], bool],
        clock: Callable[[], float],
        *,
        shards: int = 1,
        place: int = 0,
        reuse_s: float = 0.0,
    ) -> None:
        # Whole batches: their names are read from one file.
        self._start = place * BATCH_MAX % BLOCK
        self._read, self._there, self._clock, self._reuse_s = read, there, clock, reuse_s
        self._shards, self._turn, self._unread = shards, place % shards, list[int]()
        self._lock = threading.Lock()
        self._until_s: float | None = None
        self._names: dict[str, list[str]] = {}
        self._heads: dict[str, int] = {}
        self._foreign: list[str] = []

    def look(self) -> None:
        """List again, where the last listing has served its time."""
        with self._lock:
            began_s = self._clock()
            if self._until_s is not None and began_s < self._until_s:
                return
            self._unread = [(self._turn + i) % self._shards for i in range(self._shards)]
            self._turn += 1
            self._names, self._heads, self._foreign = {}, {}, []
            names = self._read(self._unread.pop(0))
            while self._unread and len(names) <= SHORT:
                names += self._read(self._unread.pop(0))
            # In their order, whichever shards they lie in.
            self._add(sorted(names) if self._shards > 1 else names)
            ended_s = self._clock()
            rest_s = _REST * (ended_s - began_s) if self._count() > SHORT else 0.0
            self._until_s = ended_s + max(rest_s, self._reuse_s)

    def more(self) -> bool:
        """Add what another shard holds; False when the last look and this have read them all."""
        with self._lock:
            if not self._unread:
                return False
            began_s = self._clock()
            self._add(self._read(self._unread.pop(0)))
            if self._until_s is not None:
                self._until_s += _REST * (self._clock() - began_s)
            return True

    def forget(self) -> None:
        """This process has changed the queue: the next look lists."""
        with self._lock:
            self._until_s = None

    def waiting(self) -> int:
        """Names that nobody is known to have taken."""
        with self._lock:
            return self._count()

    def foreign(self) -> list[str]:
        """Names that are no tickets, each told once."""
        with self._lock:
            found, self._foreign = self._foreign, []
            return found

    def first(self, devices: Collection[str]) -> str | None:
        """The oldest name for one of the devices, told once; None when there is none."""
        with self._lock:
            heads = [(n, d) for d in devices if (n := self._head(d)) is not None]
            if not heads:
                return None
            name, device = min(heads) if len(heads) > 1 else heads[0]
            self._heads[device] += 1
            return name

    def skip_taken(self, device: str) -> None:
        """Others were faster: go on where names still are.

        They take neighbours, so what is gone is a run of names. Looks ahead in doubling steps,
        then halves: a thousand names that are gone cost twenty looks. What lies between and still
        is will be in the next listing.
        """
        with self._lock:
            names, gone = self._names.get(device, []), self._heads.get(device, 0) - 1
            step, here = 1, gone + 1
            while here < len(names) and not self._there(names[here]):
                gone, step = here, step * 2
                here += step
            here = min(here, len(names))
            while here - gone > 1:
                middle = (gone + here) // 2
                if self._there(names[middle]):
                    here = middle
                else:
                    gone = middle
            self._heads[device] = here

    def _add(self, names: list[str]) -> None:
        """At the end of each device's line."""
        mine: dict[str, list[str]] = {}
        for name in names:
            parts = name.split(".", 2)
            if len(parts) == 3 and len(parts[0]) == 20 and parts[0].isdigit():
                mine.setdefault(parts[1], []).append(name)
            else:
                self._foreign.append(name)
        for device, new in mine.items():
            self._names.setdefault(device, []).extend(
                self._turned(new) if len(names) > SHORT else new
            )
            self._heads.setdefault(device, 0)

    def _turned(self, names: list[str]) -> list[str]:
        """Each block beginning with our place in it."""
        turned: list[str] = []
        for start in range(0, len(names), BLOCK):
            here = min(start + self._start, len(names))
            turned += names[here : start + BLOCK] + names[start:here]
        return turned

    def _head(self, device: str) -> str | None:
        names, head = self._names.get(device, []), self._heads.get(device, 0)
        return names[head] if head < len(names) else None

    def _count(self) -> int:
        listed = sum(map(len, self._names.values())) + len(self._foreign)
        return listed - sum(self._heads.values())
