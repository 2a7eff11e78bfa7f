"""A worker: claim one request, have it judged, commit, again; until there is a reason to leave.

Stateless: whatever moment it is killed at, its claim returns to the queue by the janitor of
another. It never dies of a candidate, of a failing judge or of a full disk. Knows nothing of
torch, of searches, or of how the judge does it.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress

from pike_hpc.mailbox import Claim, Mailbox, WorkerBeat, alive_here, host_name, start_token
from pike_hpc.records import TryAgainLater
from pike_hpc.worker.judge import Judge, judge_error
from pike_hpc.worker.judge_thread import Judged, JudgeThread
from pike_hpc.worker.options import WorkerOptions
from pike_hpc.worker.pace import Backoff, Durations
from pike_hpc.worker.stop import Stop, stop_on_signals

_log = logging.getLogger(__name__)

_TICK_S = 0.2
"""Longest sleep while judging; the end of an evaluation and signals wake it earlier."""
_CLOSE_S = 5.0
"""Patience with a judge that was told to close."""


def run_worker(
    mailbox: Mailbox,
    judge: Judge,
    options: WorkerOptions,
    *,
    stop: Stop | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    rng: random.Random | None = None,
) -> int:
    """Work until there is a reason to leave; closes the judge.

    Without `stop`, SIGTERM, SIGINT and SIGUSR2 are taken over meanwhile (main thread only).
    Returns 0 for leaving by plan (mailbox closed, idle, signal, walltime), 75 when a result
    could not be committed before it had to leave (its request is judged again).
    """
    with nullcontext(stop) if stop else stop_on_signals() as stopping:
        worker = _Worker(mailbox, judge, options, stopping, clock, wall, rng or random.Random())
        return worker.run()


class _Worker:
    def __init__(
        self,
        mailbox: Mailbox,
        judge: Judge,
        options: WorkerOptions,
        stop: Stop,
        clock: Callable[[], float],
        wall: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._mailbox, self._options, self._stop = mailbox, options, stop
        self._clock, self._wall, self._rng = clock, wall, rng
        self._device_kind = judge.device_kind
        self._thread = JudgeThread(judge, stop.ring)
        self._durations = Durations(options.expected_s)
        self._polling = Backoff(options.poll_min_s, options.poll_max_s, rng)
        self._failing = Backoff(0.5, 30.0, rng)
        self._retrying = Backoff(0.1, 10.0, rng)
        self._host, self._start_token = host_name(), start_token()
        self._started_at = wall()
        self._busy_at = clock()
        self._stop_seen_at: float | None = None
        self._next_beat_at = self._next_janitor_at = clock()
        self._counter = self._judged = 0
        self._claim: Claim | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Until there is a reason to leave."""
        try:
            while (reason := self._reason_to_leave()) is None:
                self._tend()
                claim = self._next_claim()
                if claim is not None:
                    self._serve(claim)
                    self._busy_at = self._clock()
            _log.info("worker %s leaves: %s", self._options.worker_id, reason)
        finally:
            self._thread.close(_CLOSE_S)
        # With a claim left behind the beat stays: by it a janitor sees at once that we are dead.
        if self._exit_code == 0:
            with suppress(TryAgainLater):
                self._mailbox.retire(self._options.worker_id)
        return self._exit_code

    def _reason_to_leave(self) -> str | None:
        if self._stop.reason is not None:
            return self._stop.reason
        if self._mailbox.closed():
            return "the run is finished"
        idle_s, limit_s = self._clock() - self._busy_at, self._options.max_idle_s
        if limit_s is not None and idle_s > limit_s:
            return f"nothing to do for {idle_s:.0f} s"
        if self._walltime_left_s() < self._durations.p95_s():
            return "the next evaluation may not fit into the walltime left"
        return None

    def _walltime_left_s(self) -> float:
        if self._options.walltime_end is None:
            return float("inf")
        return self._options.walltime_end - self._options.walltime_margin_s - self._wall()

    def _next_claim(self) -> Claim | None:
        try:
            kinds = frozenset({self._device_kind})
            claims = self._mailbox.claim(self._options.worker_id, kinds, 1)
        except TryAgainLater as error:
            _log.warning("%s", error)
            self._stop.wait(self._retrying.pause_s())
            return None
        if not claims:
            self._stop.wait(self._polling.pause_s())
            return None
        self._polling.reset()
        self._retrying.reset()
        return claims[0]

    def _serve(self, claim: Claim) -> None:
        if not self._persist(lambda: self._mailbox.judging(claim)):
            return
        began_at = self._clock()
        self._claim = claim
        self._next_beat_at = began_at
        self._thread.start(claim.request)
        while (judged := self._thread.take()) is None:
            self._tend()
            if self._out_of_time():
                self._hand_back(claim)
                return
            self._stop.wait(_TICK_S)
        self._durations.add(self._clock() - began_at)
        self._deliver(claim, judged)
        self._claim = None

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

    def _hand_back(self, claim: Claim) -> None:
        """Kill the evaluation and release its request: leaving is no fault of the candidate."""
        self._thread.close(_CLOSE_S)
        try:
            self._mailbox.release(claim)
        except TryAgainLater as error:
            _log.warning("%s", error)
            self._exit_code = TryAgainLater.exit_code

    def _deliver(self, claim: Claim, judged: Judged) -> None:
        result = judged.result
        try:
            committed = self._persist(lambda: self._mailbox.commit(claim, result))
        except ValueError as error:
            result = judge_error(claim.request, f"the verdict can't be written: {error}")
            committed = self._persist(lambda: self._mailbox.commit(claim, result))
        if committed is None:
            return
        self._judged += 1
        _log.info("%s %s: %s", claim.request.request_id, result.status, result.message)
        if not judged.judge_failed:
            self._failing.reset()
            return
        # A broken lane must not eat the queue: leave the rest to healthy workers for a while.
        self._rest(self._failing.pause_s())

    def _rest(self, pause_s: float) -> None:
        until = self._clock() + pause_s
        while self._stop.reason is None and self._clock() < until and not self._mailbox.closed():
            self._tend()
            self._stop.wait(min(_TICK_S, until - self._clock()))

    def _persist(self, call: Callable[[], bool]) -> bool | None:
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
        busy = "judging" if self._claim else "idle"
        return WorkerBeat(
            worker_id=self._options.worker_id,
            host=self._host,
            pid=os.getpid(),
            start_token=self._start_token,
            counter=self._counter,
            state="draining" if self._stop.reason else busy,
            request_id=self._claim.request.request_id if self._claim else None,
            phase=self._thread.phase if self._claim else "",
            device_kind=self._device_kind,
            judged=self._judged,
            started_at=self._started_at,
            walltime_end=self._options.walltime_end,
        )
