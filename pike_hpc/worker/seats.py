"""The judges of one worker, side by side: each with its thread, its claim and its troubles.

A judge keeps the tasks that it judged last warm, so a request goes to the seat that knows its
task where one is free. Knows nothing of mailboxes or signals.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from pike_hpc.mailbox import Claim
from pike_hpc.records import EvalRequest, EvalStatus
from pike_hpc.worker.judge import Judge
from pike_hpc.worker.judge_thread import Judged, JudgeThread
from pike_hpc.worker.pace import Backoff

_log = logging.getLogger(__name__)

_WARM_TASKS = 4
"""As many as a judge keeps warm (WARM_TASKS of evaluate.judge_warm)."""

_REMEMBERED = 1000
"""Programs of each judge."""


T = TypeVar("T")


class Worth(IntEnum):
    """Why a judge should get a request, or not."""

    WARM = 0
    """It keeps the task."""
    COLD = 1
    LEFT = 2
    """Others would have less to do. If there are none it does it as well."""


class Price(NamedTuple):
    """The lower the better."""

    worth: Worth
    more: int
    """Tasks used since, of one that is warm; else mostly those kept: they had better keep."""


class Seat:
    """One judge and what it has in hand."""

    def __init__(self, judge: Judge, ring: Callable[[], None], rng: random.Random) -> None:
        self._thread = JudgeThread(judge, ring)
        self._failing = Backoff(0.5, 30.0, rng)
        self._warm: deque[str] = deque(maxlen=_WARM_TASKS)
        self._searched: set[str] = set()
        self._met: dict[str, None] = {}
        self._first_calls: dict[str, float] = {}
        self.claim: Claim | None = None
        self.began_at = 0.0
        self.rests_until = float("-inf")
        self._closed = False
        self._count = 0

    @property
    def first_calls(self) -> Mapping[str, float]:
        """By id of each program that passed here, the seconds that its first call took."""
        return self._first_calls

    def price(self, request: EvalRequest, dear: bool) -> Price:
        """What it costs to judge this here, by what is known of the judge.

        Args:
            request: to be judged.
            dear: its program compiles for long where it doesn't find what was compiled before.

        The lane's rules: who times a winner again has not met its task in the search, else a new
        judge starts and all that this one keeps is lost; what a program compiled is not given to a
        judge that has met it (docs/adr/0020).
        """
        task, kept = request.task.digest, len(self._warm)
        if request.retime:
            if self._is_replaced_for(request):
                return Price(Worth.LEFT, kept)
        elif dear and request.candidate.id in self._met:
            return Price(Worth.LEFT, 0 if task in self._warm else 1 + kept)
        if task in self._warm:
            return Price(Worth.WARM, kept - self._warm.index(task))
        return Price(Worth.COLD, kept)

    @property
    def phase(self) -> str:
        """How far the evaluation in hand has come."""
        return self._thread.phase if self.claim is not None else ""

    @property
    def spent(self) -> str:
        """What its time went into."""
        return f"{self._count} judged: {self._thread.tally.text()}"

    def is_free(self, now: float) -> bool:
        """Whether it may be given work."""
        return self.claim is None and now >= self.rests_until

    def start(self, claim: Claim, now: float) -> None:
        """Begin an evaluation."""
        request = claim.request
        if request.retime and self._is_replaced_for(request):
            self._forget()
        task = request.task.digest
        if task in self._warm:
            self._warm.remove(task)
        self._warm.append(task)
        if not request.retime:
            self._searched.add(task)
        _remember(self._met, request.candidate.id, None)
        self.claim, self.began_at = claim, now
        self._thread.start(request)

    def take(self) -> Judged | None:
        """The outcome once there is one; the claim stays in hand until it is delivered."""
        return self._thread.take()

    def settle(self, judged: Judged, now: float) -> None:
        """The outcome is delivered. After a failure of the judge itself it rests for a while."""
        if self.claim is not None and judged.result.status is EvalStatus.PASSED:
            program, once = self.claim.request.candidate.id, judged.result.one_off
            longest_s = max(once.first_call_s, self._first_calls.get(program, 0.0))
            _remember(self._first_calls, program, longest_s)
        self.claim = None
        self._count += 1
        if judged.judge_failed:
            self._forget()  # it may have died
            # A broken lane must not eat the queue: leave it to the healthy.
            self.rests_until = now + self._failing.pause_s()
        else:
            self._failing.reset()

    def close(self, patience_s: float) -> None:
        """End what runs and let the judge go; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._thread.close(patience_s)

    def _is_replaced_for(self, request: EvalRequest) -> bool:
        """Whether the lane has a new judge time this winner again."""
        return request.candidate.id in self._met or request.task.digest in self._searched

    def _forget(self) -> None:
        """A new judge has met nothing; what programs take to compile stays true."""
        self._warm.clear()
        self._searched.clear()
        self._met.clear()


def assign(prices: Sequence[Sequence[Price]]) -> tuple[int, ...]:
    """Which free seat gets each request: one index of a row for each row, no index twice.

    Args:
        prices: of each request in each free seat; at most as many requests as seats.

    What some seats would leave to others chooses first, the cheapest. Then as many as can be get a
    seat that has their task warm, and the rest the cheapest that is free then.
    """
    free = list(range(len(prices[0]) if prices else 0))
    chosen: dict[int, int] = {}
    left = [[price.worth is Worth.LEFT for price in row] for row in prices]
    order = sorted(range(len(prices)), key=lambda n: -sum(left[n]))
    torn = [number for number in order if any(left[number]) and not all(left[number])]

    def give(numbers: Sequence[int]) -> None:
        for number in numbers:
            chosen[number] = min(free, key=prices[number].__getitem__)
            free.remove(chosen[number])

    give(torn)
    warm = matched([() if n in chosen else prices[n] for n in range(len(prices))], free)
    chosen |= warm
    free = [seat for seat in free if seat not in warm.values()]
    give([number for number in order if number not in chosen])
    return tuple(chosen[number] for number in range(len(prices)))


def matched(prices: Sequence[Sequence[Price]], free: Collection[int]) -> dict[int, int]:
    """A free seat that has its task warm for as many requests as can be: by index, its seat.

    Earlier requests go before later ones, if not always into the cheapest.
    """
    holders: dict[int, int] = {}

    def placed(number: int, tried: set[int]) -> bool:
        row = prices[number]
        warm = (s for s in free if row and row[s].worth is Worth.WARM)
        for seat in sorted(warm, key=row.__getitem__):
            if seat not in tried:
                tried.add(seat)
                if seat not in holders or placed(holders[seat], tried):
                    holders[seat] = number
                    return True
        return False

    for number in range(len(prices)):
        placed(number, set())
    return {number: seat for seat, number in holders.items()}


def _remember(known: dict[str, T], what: str, value: T) -> None:
    """As the latest of at most so many."""
    known.pop(what, None)
    known[what] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def close_all(seats: Sequence[Seat], patience_s: float) -> None:
    """Close seats at once, and wait for all of them at most `patience_s` together."""

    def close(seat: Seat) -> None:
        try:
            seat.close(patience_s)
        except Exception:
            _log.exception("a judge could not be closed")

    closers = [threading.Thread(target=close, args=(seat,), daemon=True) for seat in seats]
    for closer in closers:
        closer.start()
    end = time.monotonic() + patience_s + 1.0
    for closer in closers:
        closer.join(max(0.0, end - time.monotonic()))


def describe(seats: Sequence[Seat]) -> str:
    """What is under way, for people: `timing`, or of several lanes `3/4 lanes: build, 2 timing`."""
    busy = [seat for seat in seats if seat.claim is not None]
    if len(seats) == 1 or not busy:
        return busy[0].phase if busy else ""
    counts = sorted(Counter(seat.phase for seat in busy).items())
    phases = (phase if count == 1 else f"{count} {phase}" for phase, count in counts)
    return f"{len(busy)}/{len(seats)} lanes: {', '.join(phases)}"
