"""What a worker has claimed and not yet given to a judge: it waits for a seat, or for its build.

Claiming ahead lets compilers work while judges do, and leaves a choice among tasks that judges
have warm. But what one worker holds no other can take: only where plenty waits. Knows nothing of
mailboxes or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pike_hpc.mailbox import Claim
from pike_hpc.records import EvalRequest
from pike_hpc.worker.seats import Price, Seat, Worth, assign, matched

PLENTY = 4
"""Requests that wait, for each seat, before any is claimed ahead: other workers go first."""

AHEAD = 2
"""Claims ahead, for each seat."""

PATIENCE = 8
"""Times, for each seat, that a claim is passed over for others whose task is warm: about twice what
a queue of PLENTY takes. To set its task up takes as long as two verdicts."""

DEAR_S = 5.0
"""A first call that took longer compiled something, and more than most tasks take to be set up."""


class Preparer(Protocol):
    """What can be done for a request before its turn, by others than its judge."""

    def prepare(self, request: EvalRequest) -> None:
        """Begin; returns at once."""
        ...

    def is_ready(self, request: EvalRequest) -> bool:
        """Whether nothing more is being done."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    claim: Claim
    passed: int = 0
    """Times that others went before it."""

    @property
    def task(self) -> str:
        return self.claim.request.task.digest


class Backlog:
    """Claims in the order of their arrival."""

    def __init__(self, preparer: Preparer | None, seats: int) -> None:
        """`preparer`: None where there is nothing to do ahead; then nothing is claimed ahead."""
        self._preparer, self._seats = preparer, seats
        self._claims: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, claims: Sequence[Claim]) -> None:
        """They begin to wait."""
        for claim in claims:
            self._claims.append(_Waiting(claim))
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
        most = AHEAD * self._seats
        ahead = most if waiting >= PLENTY * self._seats else 0
        return max(0, min(now + ahead, free + most - len(self._claims)))

    def hand_out(self, free: Sequence[Seat], busy: Sequence[Seat]) -> list[tuple[Claim, Seat]]:
        """What is ready now, and where it goes; it leaves the backlog.

        First what free seats have warm, one for each; then what none has; then what a busy one,
        which may be free again soon, has warm or has less to do with; last more of what free seats
        have warm than there are such seats.
        """
        if not free:
            return []
        prices = {one: self._prices(one, free, busy) for one in self._ready()}

        def rank(one: _Waiting) -> int:
            if one.passed >= PATIENCE * self._seats:
                return 0
            here, there = (min(price.worth for price in row) for row in prices[one])
            return 1 if here is Worth.WARM else 3 if there < here else 2

        ranked = sorted(prices, key=rank)
        warm = matched([prices[one][0] for one in ranked], range(len(free)))
        # Whose warm seats others get can wait until one of these is free again.
        order = sorted(range(len(ranked)), key=lambda n: n not in warm and rank(ranked[n]) == 1)
        chosen = [ranked[number] for number in order[: len(free)]]
        places = assign([prices[one][0] for one in chosen])
        self._claims = [one for one in self._claims if one not in chosen]
        for one in self._claims:
            one.passed += len(chosen)
        return [(one.claim, free[place]) for one, place in zip(chosen, places, strict=True)]

    def give_up(self) -> list[Claim]:
        """All that waits; it leaves the backlog."""
        claims, self._claims = [one.claim for one in self._claims], []
        return claims

    def _prices(
        self, one: _Waiting, free: Sequence[Seat], busy: Sequence[Seat]
    ) -> tuple[list[Price], list[Price]]:
        """In each free seat, and in each busy one: with none, these are no better."""
        request = one.claim.request
        program = request.candidate.id
        dear = any(seat.first_calls.get(program, 0.0) > DEAR_S for seat in (*free, *busy))
        here, there = ([s.price(request, dear) for s in seats] for seats in (free, busy))
        return here, there or here

    def _ready(self) -> list[_Waiting]:
        if self._preparer is None:
            return list(self._claims)
        return [one for one in self._claims if self._preparer.is_ready(one.claim.request)]
