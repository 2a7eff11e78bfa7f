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
from collections.abc import Callable, Mapping, Sequence

from pike_hpc.mailbox import Claim
from pike_hpc.records import EvalRequest, EvalStatus
from pike_hpc.worker.judge import Judge
from pike_hpc.worker.judge_thread import Judged, JudgeThread
from pike_hpc.worker.pace import Backoff

_log = logging.getLogger(__name__)

_WARM_TASKS = 4
"""As many as a judge keeps warm (WARM_TASKS of evaluate.judge_warm)."""

_REMEMBERED = 1000
"""Programs of each judge; those judged longest ago are forgotten."""


class Seat:
    """One judge and what it has in hand."""

    def __init__(self, judge: Judge, ring: Callable[[], None], rng: random.Random) -> None:
        self._thread = JudgeThread(judge, ring)
        self._failing = Backoff(0.5, 30.0, rng)
        self._warm: deque[str] = deque(maxlen=_WARM_TASKS)
        self._searched: set[str] = set()
        self._first_calls: dict[str, float] = {}
        self.claim: Claim | None = None
        self.began_at = 0.0
        self.rests_until = float("-inf")
        self._closed = False
        self._count = 0

    @property
    def warm(self) -> tuple[str, ...]:
        """Digests of the tasks judged last, the latest at the end."""
        return tuple(self._warm)

    @property
    def first_calls(self) -> Mapping[str, float]:
        """By id of each program judged here, the seconds that its first call took if it passed."""
        return self._first_calls

    def leaves_to_others(self, request: EvalRequest, dear: bool) -> bool:
        """Whether another judge would have less to do. One that has none of it does it as well.

        Args:
            request: to be judged.
            dear: its program compiles for long where it doesn't find what was compiled before.

        The lane's rules: who times a winner again has not met its task in the search, else a new
        judge starts and all that this one keeps is lost; what a program compiled is not given to a
        judge that has met it (docs/adr/0020).
        """
        met = request.candidate.id in self._first_calls
        if request.retime:
            return met or request.task.digest in self._searched
        return met and dear

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
        if request.retime and self.leaves_to_others(request, dear=False):
            self._warm.clear()
            self._searched.clear()
            self._first_calls.clear()
        task = request.task.digest
        if task in self._warm:
            self._warm.remove(task)
        self._warm.append(task)
        if not request.retime:
            self._searched.add(task)
        self._note(request, 0.0)
        self.claim, self.began_at = claim, now
        self._thread.start(request)

    def take(self) -> Judged | None:
        """The outcome once there is one; the claim stays in hand until it is delivered."""
        return self._thread.take()

    def settle(self, judged: Judged, now: float) -> None:
        """The outcome is delivered. After a failure of the judge itself it rests for a while."""
        if self.claim is not None and judged.result.status is EvalStatus.PASSED:
            self._note(self.claim.request, judged.result.one_off.first_call_s)
        self.claim = None
        self._count += 1
        if judged.judge_failed:
            # A broken lane must not eat the queue: leave it to the healthy.
            self.rests_until = now + self._failing.pause_s()
        else:
            self._failing.reset()

    def close(self, patience_s: float) -> None:
        """End what runs and let the judge go; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._thread.close(patience_s)

    def _note(self, request: EvalRequest, first_call_s: float) -> None:
        program = request.candidate.id
        known_s = self._first_calls.pop(program, 0.0)
        self._first_calls[program] = max(known_s, first_call_s)
        if len(self._first_calls) > _REMEMBERED:
            del self._first_calls[next(iter(self._first_calls))]


def assign(
    tasks: Sequence[str], warm: Sequence[Sequence[str]], avoided: Sequence[Sequence[bool]]
) -> tuple[int, ...]:
    """Which free seat gets each request: one index of `warm` a task, no index twice.

    Args:
        tasks: digest of each request's task; at most as many as seats.
        warm: of each free seat the tasks it has warm, the latest at the end.
        avoided: of each request, for each free seat, whether another should rather have it.

    A seat with the task warm is preferred, the more recent the better; what is left goes to
    seats with nothing warm first, so that warm ones keep for their own. One that is avoided comes
    after all others, and who avoids more of them chooses sooner. Who avoids all has no choice.
    """
    free = list(range(len(warm)))
    chosen: dict[int, int] = {}
    shunned = [[False] * len(warm) if all(row) else row for row in avoided]
    order = sorted(range(len(tasks)), key=lambda number: -sum(shunned[number]))
    for number in order:
        task, shuns = tasks[number], shunned[number]
        knowing = [seat for seat in free if task in warm[seat] and not shuns[seat]]
        if knowing:
            seat = max(knowing, key=lambda s: (list(warm[s]).index(task) - len(warm[s]), -s))
            chosen[number] = seat
            free.remove(seat)
    for number in order:
        if number not in chosen:
            shuns = shunned[number]
            seat = min(free, key=lambda s: (shuns[s], len(warm[s]), s))
            chosen[number] = seat
            free.remove(seat)
    return tuple(chosen[number] for number in range(len(tasks)))


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
