"""A mailbox in a folder that agents and workers of many hosts share.

Contract: see `protocol.Mailbox`. Every change is one atomic rename (or one commit without
replacing), every file is complete and on disk before it has its name; so a kill at any moment
leaves at worst a stray file in tmp/ and a claim for the janitor. Locks only spare contention.
Knows nothing of judging, journals, or why a request was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from pike_hpc.mailbox.envelope import seal
from pike_hpc.mailbox.files import Files, Gone
from pike_hpc.mailbox.janitor import Janitor
from pike_hpc.mailbox.layout import (
    CLOSED_FILE,
    Hold,
    Ticket,
    request_name,
    result_name,
    slug,
)
from pike_hpc.mailbox.liveness import alive_here
from pike_hpc.mailbox.message import MAX_ATTEMPTS, Claim, QueueCounts, SeenWorker, WorkerBeat
from pike_hpc.mailbox.protocol import Liveness
from pike_hpc.mailbox.store import Store
from pike_hpc.records import CodecError, EvalRequest, EvalResult


class FileMailbox:
    """The mailbox in `root`, made when it isn't there. One instance may serve many threads.

    `clock` (monotonic seconds) measures stillness, `wall_ns` only orders messages. `commit` and
    `lock` name what a mailbox made here shall use, instead of what a probe finds.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        files: Files | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        commit: str | None = None,
        lock: str | None = None,
    ) -> None:
        self.root = root
        self._files = files or Files()
        self._store = Store(root, files=self._files, wall_ns=wall_ns, commit=commit, lock=lock)
        self._janitor = Janitor(self._store, clock, max_attempts)

    def put(self, request: EvalRequest) -> bool:
        """File a request durably. False when it is new, claimed or done already."""
        tmp = self._store.write_tmp(seal(request))
        with self._store.locked("queue"):
            if self._store.knows(request.request_id):
                self._files.unlink(tmp)
                return False
            self._store.enqueue(tmp, self._store.new_ticket(request))
        return True

    def claim(
        self, worker_id: str, device_kinds: frozenset[str], limit: int = 1
    ) -> tuple[Claim, ...]:
        """The oldest requests for one of `device_kinds`, at most `limit`."""
        devices, claims = {slug(kind) for kind in device_kinds}, list[Claim]()
        with self._store.locked("queue"):
            for name in self._store.new_names():
                if len(claims) >= limit:
                    break
                ticket = Ticket.parse(name)
                if ticket is None:
                    path = self.root / "new" / name
                    self._store.move_aside(path, "not a request: its name is not one of ours")
                elif ticket.device in devices:
                    claim = self._take(ticket, worker_id)
                    claims += [claim] if claim else []
        return tuple(claims)

    def _take(self, ticket: Ticket, worker_id: str) -> Claim | None:
        hold = self._store.take(ticket, worker_id)
        if hold is None:
            return None
        if self._store.has_result(hold.ticket.request_id):
            self._store.settle(hold)
            return None
        try:
            request = self._store.read_request(hold)
        except Gone:
            return None
        except CodecError as error:
            path = self.root / "cur" / hold.name
            self._store.move_aside(path, f"not a readable request: {error}")
            return None
        return Claim(request=request, attempt=hold.ticket.attempt, token=hold.token)

    def judging(self, claim: Claim) -> bool:
        """Mark that judging starts: from here a death counts. False when the claim is lost."""
        return self._store.mark_judging(_holds(claim)[0])

    def commit(self, claim: Claim, result: EvalResult) -> bool:
        """File the result and drop the claim; False when another's stands or nobody waits."""
        request_id = claim.request.request_id
        if result.request_id != request_id:
            raise ValueError(f"result of {result.request_id} for the request {request_id}")
        held = any(self._store.has_hold(hold) for hold in _holds(claim))
        if not held and not self._store.knows(request_id):
            return False
        won = self._store.file_result(result)
        for hold in _holds(claim):
            self._store.settle(hold)
        return won

    def release(self, claim: Claim) -> None:
        """Give the request back without counting an attempt."""
        with self._store.locked("queue"):
            for hold in _holds(claim):
                self._store.put_back(hold, hold.ticket)

    def results(self, request_ids: Collection[str]) -> dict[str, EvalResult]:
        """Those of the results asked for that exist: one listing, not a look per id."""
        present, found = set(self._store.done_names()), {}
        for request_id in request_ids:
            if result_name(request_id) in present:
                result = self._read_result(request_id)
                if result is not None:
                    found[request_id] = result
            elif request_name(request_id) in present:
                # A kill fell between moving an unreadable result aside and queueing again.
                self._store.judge_again(request_id)
        return found

    def _read_result(self, request_id: str) -> EvalResult | None:
        try:
            return self._store.read_result(request_id)
        except Gone:
            return None
        except CodecError as error:
            path = self.root / "done" / result_name(request_id)
            self._store.move_aside(path, f"not a readable result: {error}")
            self._store.judge_again(request_id)
            return None

    def discard(self, request_ids: Collection[str]) -> None:
        """Forget requests whose results are journalled: result, stray copies and claims."""
        ids = set(request_ids)
        for name in self._store.new_names():
            ticket = Ticket.parse(name)
            if ticket is not None and ticket.request_id in ids:
                self._remove(self.root / "new" / name)
        for name in self._store.cur_names():
            hold = Hold.parse(name)
            if hold is not None and hold.ticket.request_id in ids:
                self._remove(self.root / "cur" / name)
        for request_id in ids:
            self._store.forget_result(request_id)

    def withdraw(self, request_ids: Collection[str]) -> frozenset[str]:
        """Take back what nobody has begun to judge; those left: being judged, or with a result."""
        ids = set(request_ids)
        with self._store.locked("queue"):
            for name in self._store.new_names():
                ticket = Ticket.parse(name)
                if ticket is not None and ticket.request_id in ids:
                    self._remove(self.root / "new" / name)
            for name in self._store.cur_names():
                hold = Hold.parse(name)
                if hold is not None and hold.ticket.request_id in ids and not hold.judging:
                    self._remove(self.root / "cur" / name)
        # What began meanwhile has another name by now.
        store = self._store
        names = [*store.new_names(), *store.cur_names(), *store.done_names()]
        return frozenset(i for i in ids if any(i in name for name in names))

    def beat(self, beat: WorkerBeat) -> None:
        """Replace this worker's sign of life."""
        self._store.write_beat(beat)

    def workers(self) -> tuple[SeenWorker, ...]:
        """Every worker that beats and has not retired, by id, with the age of its beat."""
        seen = []
        for holder, beat in self._store.beats().items():
            with suppress(Gone):
                seen.append(SeenWorker(beat, self._store.beat_age_s(holder)))
        return tuple(sorted(seen, key=lambda s: (s.beat.worker_id, s.age_s)))

    def retire(self, worker_id: str) -> None:
        """Take this worker's sign of life away."""
        self._store.remove_beat(self._store.holder(worker_id))

    def requeue_lost(self, *, stale_s: float, is_alive: Liveness = alive_here) -> int:
        """Return the claims of dead workers to the queue; how many were moved."""
        return self._janitor.requeue_lost(stale_s=stale_s, is_alive=is_alive)

    def waiting(self) -> int:
        """Requests that nobody has claimed, of any kind of device: one listing."""
        return len(self._store.new_names())

    def counts(self) -> QueueCounts:
        """What lies where now."""
        done, dead = self._store.done_names(), self._files.names(self.root / "dead")
        return QueueCounts(
            new=len(self._store.new_names()),
            claimed=len(self._store.cur_names()),
            done=sum(name.endswith(".json") for name in done),
            dead=sum(not name.endswith(".reason") for name in dead),
        )

    def close(self) -> None:
        """The run is finished: workers leave."""
        with suppress(FileExistsError):
            self._files.write_new(self.root / CLOSED_FILE, b"")

    def reopen(self) -> None:
        """The run goes on."""
        self._remove(self.root / CLOSED_FILE)

    def closed(self) -> bool:
        """Whether workers shall leave."""
        return self._files.exists(self.root / CLOSED_FILE)

    def _remove(self, path: Path) -> None:
        with suppress(Gone):
            self._files.unlink(path)


def _holds(claim: Claim) -> tuple[Hold, Hold]:
    """The two names that a claim may have in cur/: claimed, and being judged."""
    hold = Hold.parse(f"{claim.token}.c")
    if hold is None:
        raise ValueError(f"not a claim of this kind of mailbox: {claim.token!r}")
    return hold, hold.as_judging(True)
