"""What a worker has claimed and not yet given to a judge: it waits for a seat, or for its build.

Claiming ahead lets compilers work while judges do, but what one worker holds no other can take:
only where plenty waits. Knows nothing of mailboxes, judges or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pike_hpc.mailbox import Claim
from pike_hpc.records import EvalRequest
from pike_hpc.worker.seats import Seat, assign

PLENTY = 4
"""Requests that wait, for each seat, before any is claimed ahead: other workers go first."""


class Preparer(Protocol):
    """What can be done for a request before its turn, by others than its judge."""

    def prepare(self, request: EvalRequest) -> None:
        """Begin; returns at once."""
        ...

    def is_ready(self, request: EvalRequest) -> bool:
        """Whether nothing more is being done."""
        ...


class Backlog:
    """Claims in the order of their arrival."""

    def __init__(self, preparer: Preparer | None, seats: int) -> None:
        """`preparer`: None where there is nothing to do ahead; then nothing is claimed ahead."""
        self._preparer, self._seats = preparer, seats
        self._claims: list[Claim] = []

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, claims: Sequence[Claim]) -> None:
        """They begin to wait."""
        for claim in claims:
            self._claims.append(claim)
            if self._preparer is not None:
                self._preparer.prepare(claim.request)

    def wanted(self, free: int, waiting: int) -> int:
        """How many to claim now.

        Args:
            free: seats without work.
            waiting: requests that nobody has claimed.
        """
        now = max(0, free - len(self._ready()))
        if self._preparer is None:
            return now
        ahead = self._seats if waiting >= PLENTY * self._seats else 0
        return max(0, min(now + ahead, free + self._seats - len(self._claims)))

    def hand_out(self, free: Sequence[Seat]) -> list[tuple[Claim, Seat]]:
        """What is ready now, and where it goes; it leaves the backlog."""
        ready = self._ready()[: len(free)]
        places = assign([c.request.task.digest for c in ready], [seat.warm for seat in free])
        for claim in ready:
            self._claims.remove(claim)
        return [(claim, free[place]) for claim, place in zip(ready, places, strict=True)]

    def give_up(self) -> list[Claim]:
        """All that waits; it leaves the backlog."""
        claims, self._claims = self._claims, []
        return claims

    def _ready(self) -> list[Claim]:
        if self._preparer is None:
            return list(self._claims)
        return [claim for claim in self._claims if self._preparer.is_ready(claim.request)]
