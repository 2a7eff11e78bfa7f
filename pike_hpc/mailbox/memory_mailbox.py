"""A mailbox within one process: for simulations, and the model the file mailbox is held to.

Contract: see `protocol.Mailbox`. Thread-safe; forgets everything with the process. It has no
clock of its own, so a worker is lost by `is_alive`, or by stillness on the clock given.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pike_hpc.mailbox.leases import Heard, Leases
from pike_hpc.mailbox.lost import Stillness, lost_result
from pike_hpc.mailbox.message import MAX_ATTEMPTS, Claim, QueueCounts, SeenWorker, WorkerBeat
from pike_hpc.mailbox.protocol import JobsRun, Liveness, Watch
from pike_hpc.records import EvalRequest, EvalResult


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A request from put to discard."""

    request: EvalRequest
    sequence: int
    attempt: int = 1
    worker_id: str | None = None
    token: str = ""
    judging: bool = False
    result: EvalResult | None = None


class _Board:
    """What was heard of workers' jobs."""

    def __init__(self) -> None:
        self._heard: Heard | None = None

    def heard(self) -> Heard | None:
        return self._heard

    def note(self, heard: Heard) -> None:
        self._heard = heard


class MemoryMailbox:
    """A mailbox of one process. `clock` is monotonic seconds, `jobs` asks about workers' jobs."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_attempts: int = MAX_ATTEMPTS,
        jobs: JobsRun | None = None,
    ) -> None:
        self._clock = clock
        self._max_attempts = max_attempts
        self._stillness = Stillness(clock)
        self._leases = Leases(clock, jobs, _Board())
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._entries: dict[str, _Entry] = {}
        self._beats: dict[str, tuple[WorkerBeat, float]] = {}
        self._dead = 0
        self._closed = False

    def put(self, request: EvalRequest) -> bool:
        """File a request. False when it is new, claimed or done already."""
        with self._lock:
            if request.request_id in self._entries:
                return False
            entry = _Entry(request=request, sequence=next(self._numbers))
            self._entries[request.request_id] = entry
            return True

    def put_many(self, requests: Sequence[EvalRequest]) -> tuple[bool, ...]:
        """`put` for each, in order."""
        return tuple([self.put(request) for request in requests])

    def claim(
        self, worker_id: str, device_kinds: frozenset[str], limit: int = 1
    ) -> tuple[Claim, ...]:
        """The oldest requests for one of `device_kinds`, at most `limit`."""
        with self._lock:
            waiting = [
                e
                for e in self._entries.values()
                if _waits(e) and e.request.device_kind in device_kinds
            ]
            taken = sorted(waiting, key=lambda e: e.sequence)[:limit]
            return tuple(self._hold(entry, worker_id) for entry in taken)

    def _hold(self, entry: _Entry, worker_id: str) -> Claim:
        entry.worker_id, entry.judging = worker_id, False
        entry.token = f"{worker_id}~{next(self._numbers)}"
        return Claim(request=entry.request, attempt=entry.attempt, token=entry.token)

    def _held(self, claim: Claim) -> _Entry | None:
        entry = self._entries.get(claim.request.request_id)
        holds = entry is not None and entry.worker_id is not None and entry.token == claim.token
        return entry if holds else None

    def judging(self, claim: Claim) -> bool:
        """Mark that judging starts: from here a death counts. False when the claim is lost."""
        with self._lock:
            entry = self._held(claim)
            if entry is None:
                return False
            entry.judging = True
            return True

    def commit(self, claim: Claim, result: EvalResult) -> bool:
        """File the result and drop the claim; False when another's stands or nobody waits."""
        return self.commit_many([(claim, result)])[0]

    def commit_many(self, judged: Sequence[tuple[Claim, EvalResult]]) -> tuple[bool, ...]:
        """`commit` for each pair. Raises ValueError before any where one does not fit."""
        for claim, result in judged:
            request_id = claim.request.request_id
            if result.request_id != request_id:
                raise ValueError(f"result of {result.request_id} for the request {request_id}")
        return tuple([self._commit(result) for _, result in judged])

    def _commit(self, result: EvalResult) -> bool:
        request_id = result.request_id
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is None or entry.result is not None:
                return False
            entry.result, entry.worker_id, entry.judging = result, None, False
            return True

    def release(self, claim: Claim, *, tried: bool = False) -> None:
        """Give the request back; an attempt counts only where it was `tried`."""
        with self._lock:
            entry = self._held(claim)
            if entry is not None:
                entry.attempt += tried and entry.attempt < self._max_attempts
                entry.worker_id, entry.judging = None, False

    def results(self, request_ids: Collection[str]) -> dict[str, EvalResult]:
        """Those of the results asked for that exist."""
        with self._lock:
            entries = {i: self._entries[i] for i in request_ids if i in self._entries}
            return {i: e.result for i, e in entries.items() if e.result is not None}

    def discard(self, request_ids: Collection[str]) -> None:
        """Forget requests whose results are journalled."""
        with self._lock:
            for request_id in request_ids:
                self._entries.pop(request_id, None)

    def withdraw(self, request_ids: Collection[str]) -> frozenset[str]:
        """Take back what nobody has begun to judge; those left: being judged, or with a result."""
        with self._lock:
            known = {i: self._entries[i] for i in request_ids if i in self._entries}
            begun = {i for i, entry in known.items() if entry.judging or entry.result is not None}
            for request_id in known.keys() - begun:
                del self._entries[request_id]
            return frozenset(begun)

    def beat(self, beat: WorkerBeat) -> None:
        """Replace this worker's sign of life."""
        with self._lock:
            self._beats[beat.worker_id] = (beat, self._clock())

    def workers(self) -> tuple[SeenWorker, ...]:
        """Every worker that beats and has not retired, by id, with the age of its beat."""
        with self._lock:
            now_s = self._clock()
            return tuple(
                SeenWorker(b, now_s - at_s) for _, (b, at_s) in sorted(self._beats.items())
            )

    def retire(self, worker_id: str) -> None:
        """Take this worker's sign of life away."""
        with self._lock:
            self._beats.pop(worker_id, None)

    def requeue_lost(self, *, stale_s: float, is_alive: Liveness) -> int:
        """Return the claims of dead workers to the queue; how many were moved."""
        with self._lock:
            beats = {worker_id: beat for worker_id, (beat, _) in self._beats.items()}
            lost = self._leases.lost(beats, stale_s=stale_s, is_alive=is_alive)
            held = [e for e in self._entries.values() if e.worker_id is not None]
            moved = sum(self._recover(e) for e in held if self._is_orphan(e, lost, stale_s))
            for worker_id in lost:
                del self._beats[worker_id]
            self._stillness.keep_only({e.token for e in held})
            return moved

    def _is_orphan(self, entry: _Entry, lost: set[str], stale_s: float) -> bool:
        beats_here = entry.worker_id in self._beats
        # As in a folder, where judging gives a claim another name.
        missed_s = self._stillness.still_s(entry.token, 2 * entry.judging + beats_here)
        return entry.worker_id in lost if beats_here else missed_s >= stale_s

    def _recover(self, entry: _Entry) -> bool:
        if entry.judging and entry.attempt >= self._max_attempts:
            entry.result = lost_result(entry.request, entry.attempt)
            self._dead += 1
        elif entry.judging:
            entry.attempt += 1
        entry.worker_id, entry.judging = None, False
        return True

    def watch(self, ring: Callable[[], None]) -> Watch | None:
        """None: a look costs next to nothing here."""
        return None

    def waiting(self) -> int:
        """Requests that nobody has claimed, of any kind of device."""
        with self._lock:
            return sum(_waits(entry) for entry in self._entries.values())

    def counts(self) -> QueueCounts:
        """What lies where now."""
        with self._lock:
            entries = self._entries.values()
            return QueueCounts(
                new=sum(map(_waits, entries)),
                claimed=sum(e.worker_id is not None for e in entries),
                done=sum(e.result is not None for e in entries),
                dead=self._dead,
            )

    def close(self) -> None:
        """The run is finished: workers leave."""
        self._closed = True

    def reopen(self) -> None:
        """The run goes on."""
        self._closed = False

    def closed(self) -> bool:
        """Whether workers shall leave."""
        return self._closed


def _waits(entry: _Entry) -> bool:
    return entry.worker_id is None and entry.result is None
