"""A worker: claim a request for each idle judge, have it judged, commit, again; until it leaves.

One process, one heartbeat and one look into the mailbox for all judges of a node. Stateless:
whatever moment it is killed at, its claims return to the queue by the janitor of another. It
never dies of a candidate, of a failing judge or of a full disk, and one judge's trouble does not
stop the others. Knows nothing of torch, of searches, or of how the judges do it.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TypeVar

from pike_hpc.mailbox import Claim, Mailbox, Watch, WorkerBeat, alive_here, host_name, start_token
from pike_hpc.records import EvalResult, TryAgainLater
from pike_hpc.worker.backlog import Backlog, Preparer
from pike_hpc.worker.judge import Judge, judge_error
from pike_hpc.worker.options import WorkerOptions
from pike_hpc.worker.pace import Backoff, Durations
from pike_hpc.worker.seats import Seat, close_all, describe
from pike_hpc.worker.stop import Stop, stop_on_signals

R = TypeVar("R")

_log = logging.getLogger(__name__)

_TICK_S = 0.2
"""Longest sleep while judging; the end of an evaluation and signals wake it earlier."""
_CLOSE_S = 5.0
"""Patience with judges that were told to close."""


def run_worker(
    mailbox: Mailbox,
    judges: Sequence[Judge],
    options: WorkerOptions,
    *,
    preparer: Preparer | None = None,
    stop: Stop | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    rng: random.Random | None = None,
) -> int:
    """Work until there is a reason to leave; closes the judges.

    `judges`, one a lane, judge at the same time, each one request at a time; all of one kind of
    device. With a `preparer`, a little is claimed ahead where plenty waits, and what it compiles is
    compiled before its turn. Without `stop`, SIGTERM, SIGINT and SIGUSR2 are taken over meanwhile
    (main thread only). Returns 0 for leaving by plan (mailbox closed, idle, signal, walltime), 75
    when a result could not be committed before it had to leave (its request is judged again).

    Raises:
        ValueError: no judge, or judges of several kinds of device.
    """
    with nullcontext(stop) if stop else stop_on_signals() as stopping:
        worker = _Worker(
            mailbox, judges, options, preparer, stopping, clock, wall, rng or random.Random()
        )
        return worker.run()


class _Worker:
    def __init__(
        self,
        mailbox: Mailbox,
        judges: Sequence[Judge],
        options: WorkerOptions,
        preparer: Preparer | None,
        stop: Stop,
        clock: Callable[[], float],
        wall: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._mailbox, self._options, self._stop = mailbox, options, stop
        self._clock, self._wall, self._rng = clock, wall, rng
        kinds = frozenset(judge.device_kind for judge in judges)
        if len(kinds) != 1:
            raise ValueError(f"a worker's judges are of one kind of device, not {sorted(kinds)}")
        self._kinds = kinds
        self._seats = [Seat(judge, stop.ring, rng) for judge in judges]
        self._backlog = Backlog(preparer, len(judges))
        self._ahead = preparer is not None
        self._durations = Durations(options.expected_s)
        self._watch: Watch | None = mailbox.watch(stop.ring)
        longest_s = options.watched_s if self._watch is not None else options.poll_max_s
        self._polling = Backoff(options.poll_min_s, longest_s, rng)
        self._retrying = Backoff(0.1, 10.0, rng)
        self._host, self._start_token = host_name(), start_token()
        self._started_at = wall()
        self._busy_at = self._looked_at = clock()
        self._stop_seen_at: float | None = None
        self._next_claim_at = self._next_beat_at = self._next_janitor_at = clock()
        self._counter = self._judged = 0
        self._leaving = False
        self._exit_code = 0

    def run(self) -> int:
        """Until there is a reason to leave."""
        try:
            while (reason := self._reason_to_leave()) is None:
                self._tend()
                self._hand_out()
                self._stop.wait(self._pause_s())
                self._collect()
            _log.info("worker %s leaves: %s", self._options.worker_id, reason)
            self._drain()
        finally:
            if self._watch is not None:
                self._watch.close()
            close_all(self._seats, _CLOSE_S)
            for number, seat in enumerate(self._seats, 1):
                _log.info("lane %d: %s", number, seat.spent)
        # With a claim left behind the beat stays: by it a janitor sees at once that we are dead.
        if self._exit_code == 0:
            with suppress(TryAgainLater):
                self._mailbox.retire(self._options.worker_id)
        return self._exit_code

    @property
    def _busy(self) -> list[Seat]:
        return [seat for seat in self._seats if seat.claim is not None]

    def _reason_to_leave(self) -> str | None:
        now = self._clock()
        if self._stop.reason is not None or self._walltime_left_s() <= 0:
            return self._stop.reason or "the walltime is over"
        if len(self._busy) == len(self._seats):
            self._busy_at = now
            return None  # nothing could be claimed, so there is no need to ask
        if self._busy or len(self._backlog) or any(seat.rests_until > now for seat in self._seats):
            self._busy_at = now
        if self._mailbox.closed():
            return "the run is finished"
        idle_s, limit_s = now - self._busy_at, self._options.max_idle_s
        if limit_s is not None and idle_s > limit_s:
            if self._looked_at > self._busy_at + limit_s:
                return f"nothing to do for {idle_s:.0f} s"
            self._next_claim_at = now  # the last look may be a long pause old
        fits = self._walltime_left_s() >= self._durations.p95_s()
        return None if fits else "the next evaluation may not fit into the walltime left"

    def _walltime_left_s(self) -> float:
        if self._options.walltime_end is None:
            return float("inf")
        return self._options.walltime_end - self._options.walltime_margin_s - self._wall()

    def _hand_out(self) -> None:
        """Claim for the seats that are free, and start what is ready."""
        now = self._clock()
        free = [seat for seat in self._seats if seat.is_free(now)]
        if self._watch is not None and self._watch.came():
            self._polling.reset()
            self._next_claim_at = now
        if (free or self._ahead) and now >= self._next_claim_at:
            self._claim(now, len(free))
        started = self._backlog.hand_out(free, self._busy)
        for claim, seat in started:
            self._start(claim, seat)
        if started:
            self._tend()

    def _claim(self, now: float, free: int) -> None:
        """Claim what is wanted. When nothing comes of it the next try is a pause away."""
        self._looked_at = now
        if self._watch is not None:
            self._watch.arm()
        try:
            waiting = self._mailbox.waiting() if self._ahead else 0
            wanted = self._backlog.wanted(free, waiting)
            claims = (
                self._mailbox.claim(self._options.worker_id, self._kinds, wanted) if wanted else ()
            )
        except TryAgainLater as error:
            _log.warning("%s", error)
            self._next_claim_at = now + self._retrying.pause_s()
            return
        if not claims:
            self._next_claim_at = now + self._polling.pause_s()
            return
        self._polling.reset()
        self._retrying.reset()
        self._backlog.add(claims)

    def _start(self, claim: Claim, seat: Seat) -> None:
        if self._stop.reason is not None:
            self._release(claim)
            return
        begun = self._persist(lambda: self._mailbox.judging(claim))
        if begun is None:
            self._release(claim)
        elif begun:
            seat.start(claim, self._clock())
            self._next_beat_at = self._clock()

    def _pause_s(self) -> float:
        """How long nothing has to be done; signals and ends of evaluations ring earlier."""
        now = self._clock()
        until = [now + _TICK_S]
        idle = [seat for seat in self._seats if seat.claim is None]
        if idle:
            ready_at = min(seat.rests_until for seat in idle)
            until.append(max(ready_at, self._next_claim_at))
        return max(0.0, min(until) - now)

    def _collect(self) -> None:
        """Commit what has been judged, all of it at once."""
        ended = [(seat, judged) for seat in self._busy if (judged := seat.take()) is not None]
        if not ended:
            return
        for seat, _ in ended:
            self._durations.add(self._clock() - seat.began_at)
        verdicts = []
        for seat, judged in ended:
            if seat.claim is not None and judged.judge_failed and seat.claim.attempt == 1:
                self._ask_again(seat.claim, judged.result)
            elif seat.claim is not None:
                verdicts.append((seat.claim, judged.result))
        if verdicts:
            self._deliver(verdicts)
        for seat, judged in ended:
            seat.settle(judged, self._clock())
        self._next_claim_at = self._busy_at = self._clock()

    def _drain(self) -> None:
        """Let what is in hand end in its time, and give back what does not."""
        self._leaving = True
        self._next_beat_at = self._clock()
        for claim in self._backlog.give_up():
            self._release(claim)
        while self._busy:
            self._collect()
            if self._out_of_time():
                break
            self._tend()
            if self._busy:
                self._stop.wait(_TICK_S)
        if not self._busy:
            return
        # Leaving is no fault of the candidates: their judges are killed, the requests released.
        close_all(self._seats, _CLOSE_S)
        for seat in self._busy:
            if seat.claim is not None:
                self._release(seat.claim)
                seat.claim = None

    def _ask_again(self, claim: Claim, result: EvalResult) -> None:
        """Give a request back once whose judge failed: another lane may be well, or this one soon.

        Twice, and the failure is the verdict: a program can be what a judge fails of.
        """
        _log.warning("%s goes back for a second try: %s", claim.request.request_id, result.message)
        self._persist(lambda: self._mailbox.release(claim, tried=True))

    def _out_of_time(self) -> bool:
        """Whether what is in flight must be given up now."""
        if self._walltime_left_s() <= 0:
            self._stop.request("the walltime is over")
            return True
        if self._stop.reason is None:
            return False
        if self._stop_seen_at is None:
            self._stop_seen_at = self._clock()
            self._next_beat_at = self._stop_seen_at
        return self._stop.hurried or (self._clock() - self._stop_seen_at >= self._options.drain_s)

    def _release(self, claim: Claim) -> None:
        try:
            self._mailbox.release(claim)
        except TryAgainLater as error:
            _log.warning("%s", error)
            self._exit_code = TryAgainLater.exit_code

    def _deliver(self, judged: Sequence[tuple[Claim, EvalResult]]) -> None:
        """Commit results; one that can't be written does not keep the others."""
        try:
            committed = self._persist(lambda: self._mailbox.commit_many(judged))
        except ValueError as error:
            for claim, result in judged if len(judged) > 1 else ():
                self._deliver([(claim, result)])
            if len(judged) == 1:
                claim = judged[0][0]
                said = judge_error(claim.request, f"the verdict can't be written: {error}")
                self._deliver([(claim, said)])
            return
        if committed is None:
            return
        self._judged += len(judged)
        for claim, result in judged:
            _log.info("%s %s: %s", claim.request.request_id, result.status, result.message)

    def _persist(self, call: Callable[[], R]) -> R | None:
        """Repeat a call while the disk is full; None when there is no more time for that."""
        while True:
            try:
                return call()
            except TryAgainLater as error:
                _log.warning("%s", error)
                if self._out_of_time():
                    self._exit_code = TryAgainLater.exit_code
                    return None
                self._tend()
                self._stop.wait(self._retrying.pause_s())

    def _tend(self) -> None:
        """Beat and clean up, when due."""
        now = self._clock()
        if now >= self._next_beat_at:
            self._next_beat_at = now + self._options.heartbeat_s
            with suppress(TryAgainLater):
                self._mailbox.beat(self._beat())
        if now >= self._next_janitor_at:
            self._next_janitor_at = now + self._options.janitor_s * self._rng.uniform(0.5, 1.5)
            with suppress(TryAgainLater):
                stale_s = self._options.stale_s
                moved = self._mailbox.requeue_lost(stale_s=stale_s, is_alive=alive_here)
                if moved:
                    _log.info("%d requests of lost workers are in the queue again", moved)

    def _beat(self) -> WorkerBeat:
        self._counter += 1
        oldest = min(self._busy, key=lambda seat: seat.began_at, default=None)
        held = oldest.claim if oldest is not None else None
        draining = self._leaving or self._stop.reason is not None
        return WorkerBeat(
            worker_id=self._options.worker_id,
            host=self._host,
            pid=os.getpid(),
            start_token=self._start_token,
            counter=self._counter,
            job=self._options.job,
            job_restarts=self._options.job_restarts,
            state="draining" if draining else "judging" if held else "idle",
            request_id=held.request.request_id if held else None,
            phase=describe(self._seats),
            device_kind=next(iter(self._kinds)),
            judged=self._judged,
            started_at=self._started_at,
            walltime_end=self._options.walltime_end,
        )
