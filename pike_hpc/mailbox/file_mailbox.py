"""A mailbox in a folder that agents and workers of many hosts share.

Contract: see `protocol.Mailbox`. Every change is one atomic rename (or one commit without
replacing), every file is complete and on disk before it has its name; so a kill at any moment
leaves at worst a stray file in tmp/, a claim for the janitor, and a mark in known/ that the
next `put` looks behind. Locks only spare contention.
Knows nothing of judging, journals, or why a request was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pike_hpc.mailbox.arrivals import watched
from pike_hpc.mailbox.disk import is_shared
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
from pike_hpc.mailbox.line import Line
from pike_hpc.mailbox.liveness import alive_here
from pike_hpc.mailbox.message import MAX_ATTEMPTS, Claim, QueueCounts, SeenWorker, WorkerBeat
from pike_hpc.mailbox.protocol import JobsRun, Liveness, Watch
from pike_hpc.mailbox.store import Store
from pike_hpc.records import CodecError, EvalRequest, EvalResult, TryAgainLater

_SHARED_REUSE_S = 1.0
"""On a shared file system one listing serves all who look within this time."""
SHARED_CLOSED_S = 5.0
"""On a shared file system `closed` looks no more often."""


class FileMailbox:
    """The mailbox in `root`, made when it isn't there. One instance may serve many threads.

    `clock` (monotonic seconds) measures stillness, `wall_ns` only orders messages. `commit` and
    `lock` name what a mailbox made here shall use, instead of what a probe finds, `shards` to how
    many folders it deals its waiting requests; one that is there is used as made. `shared` says
    whether other machines see the folder too, instead of what this one's mounts tell. `jobs` asks
    Slurm about workers that give no sign of life.
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
        shared: bool | None = None,
        jobs: JobsRun | None = None,
        shards: int = 1,
    ) -> None:
        self.root = root
        self._files, self._clock = files or Files(), clock
        self._store = Store(
            root, files=self._files, wall_ns=wall_ns, commit=commit, lock=lock, shards=shards
        )
        self._max_attempts = max_attempts
        self._janitor = Janitor(self._store, clock, max_attempts, jobs)
        self.shared = is_shared(root) if shared is None else shared
        self._line = Line(
            self._store.shard_names,
            self._still_waits,
            clock,
            shards=len(self._store.shards.folders),
            place=self._store.place,
            reuse_s=_SHARED_REUSE_S if self.shared else 0.0,
        )
        self._open_until_s = clock()
        self._untold: dict[str, list[Hold]] = {}

    def put(self, request: EvalRequest) -> bool:
        """File a request durably. False when it is new, claimed or done already."""
        return self.put_many([request])[0]

    def put_many(self, requests: Sequence[EvalRequest]) -> tuple[bool, ...]:
        """`put` for each, several in one file where the file system can link."""
        ids = [request.request_id for request in requests]
        each = dict(zip(ids, requests, strict=True))
        new = {i: request for i, request in each.items() if self._store.mark(i)}
        if new:
            self._store.enqueue(new)
        if len(new) < len(each):
            new |= self._put_again({i: r for i, r in each.items() if i not in new})
        self._line.forget()
        return tuple([new.pop(i, None) is not None for i in ids])

    def _put_again(self, marked: Mapping[str, EvalRequest]) -> dict[str, EvalRequest]:
        """Put what somebody began to put: usually all is there, after a kill some is not."""
        with self._store.locked("queue"):
            known = self._store.known(marked)
            missing = {i: request for i, request in marked.items() if i not in known}
            if missing:
                self._store.enqueue(missing)
        return missing

    def claim(
        self, worker_id: str, device_kinds: frozenset[str], limit: int = 1
    ) -> tuple[Claim, ...]:
        """The oldest requests for one of `device_kinds`, at most `limit`."""
        devices, claims = {slug(kind) for kind in device_kinds}, list[Claim]()
        self._line.look()
        for name in self._line.foreign():
            self._move_stranger(name)
        # What was taken when the disk failed is this worker's still: it comes first.
        untold = self._untold.setdefault(worker_id, [])
        try:
            while len(claims) < limit and (untold or self._take(untold, worker_id, devices)):
                claim = self._read(untold[0])
                untold.pop(0)
                claims += [claim] if claim else []
        except TryAgainLater:
            if not claims:
                raise
        return tuple(claims)

    def _still_waits(self, name: str) -> bool:
        ticket = Ticket.parse(name)
        return ticket is not None and self._files.exists(self._store.shards.place(ticket))

    def _take(self, untold: list[Hold], worker_id: str, devices: set[str]) -> bool:
        """Take the oldest request into `untold`; False when there is none."""
        while (first := self._line.first(devices)) is not None or self._line.more():
            if first is None:
                continue
            ticket = Ticket.parse(first)
            if ticket is None:
                self._move_stranger(first)
                continue
            hold = self._store.take(ticket, worker_id)
            if hold is not None:
                untold.append(hold)
                return True
            self._line.skip_taken(ticket.device)
        return False

    def _move_stranger(self, name: str) -> None:
        for folder in self._store.shards.folders:
            self._store.move_aside(folder / name, "not a request: its name is not one of ours")

    def _read(self, hold: Hold) -> Claim | None:
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
        return self._store.mark_judging(_holds(claim)[1])

    def commit(self, claim: Claim, result: EvalResult) -> bool:
        """File the result and drop the claim; False when another's stands or nobody waits."""
        return self.commit_many([(claim, result)])[0]

    def commit_many(self, judged: Sequence[tuple[Claim, EvalResult]]) -> tuple[bool, ...]:
        """`commit` for each pair, results in one file where the file system can link."""
        holds = [_holds(claim) for claim, _ in judged]
        ids = [hold.ticket.request_id for hold, _ in holds]
        for request_id, (_, result) in zip(ids, judged, strict=True):
            if result.request_id != request_id:
                raise ValueError(f"result of {result.request_id} for the request {request_id}")
        wanted: dict[str, EvalResult] = {}
        for request_id, names, (_, result) in zip(ids, holds, judged, strict=True):
            # Of two results for one request in one call the first stands, as in two calls.
            if request_id not in wanted and self._waits_for(names):
                wanted[request_id] = result
        won = self._store.file_results(wanted)
        for request_id, names in zip(ids, holds, strict=True):
            if request_id in wanted:
                self._store.settle(*names)
        return tuple([won.pop(request_id, False) for request_id in ids])

    def _waits_for(self, names: tuple[Hold, Hold]) -> bool:
        held = any(self._store.has_hold(hold) for hold in names)
        return held or self._store.is_waited_for(names[0].ticket.request_id)

    def release(self, claim: Claim, *, tried: bool = False) -> None:
        """Give the request back; an attempt counts only where it was `tried`."""
        counts = tried and claim.attempt < self._max_attempts
        with self._store.locked("queue"):
            for hold in _holds(claim):
                self._store.put_back(hold, hold.ticket.next_attempt() if counts else hold.ticket)
        self._line.forget()

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
        for request_id in ids:
            # First of all: from here a late commit is refused.
            self._store.unmark(request_id)
        # A request that lies beside its result was settled there: it has no copy elsewhere.
        elsewhere = {i for i in ids if not self._store.forget_request(i)}
        self._remove_copies(elsewhere, begun=True)
        for request_id in ids:
            self._store.forget_result(request_id)

    def _remove_copies(self, ids: set[str], *, begun: bool) -> None:
        """Take requests out of the queue and out of the hands of workers."""
        if not ids:
            return
        for name in self._store.new_names():
            ticket = Ticket.parse(name)
            if ticket is not None and ticket.request_id in ids:
                self._remove(self._store.shards.place(ticket))
        for name in self._store.cur_names():
            hold = Hold.parse(name)
            if hold is not None and hold.ticket.request_id in ids and (begun or not hold.judging):
                self._remove(self.root / "cur" / name)

    def withdraw(self, request_ids: Collection[str]) -> frozenset[str]:
        """Take back what nobody has begun to judge; those left: being judged, or with a result."""
        ids = set(request_ids)
        with self._store.locked("queue"):
            self._remove_copies(ids, begun=False)
        # What began meanwhile has another name by now.
        left = self._store.known(ids)
        for request_id in ids - left:
            self._store.unmark(request_id)
        self._line.forget()
        return frozenset(left)

    def beat(self, beat: WorkerBeat) -> None:
        """Replace this worker's sign of life."""
        self._store.beats.write(self._store.holder(beat.worker_id), beat)

    def workers(self) -> tuple[SeenWorker, ...]:
        """Every worker that beats and has not retired, by id, with the age of its beat."""
        beats = self._store.beats.all()
        ages_s = self._store.beats.ages_s(beats)
        seen = [SeenWorker(beats[holder], age_s) for holder, age_s in ages_s.items()]
        return tuple(sorted(seen, key=lambda s: (s.beat.worker_id, s.age_s)))

    def retire(self, worker_id: str) -> None:
        """Take this worker's sign of life away."""
        self._store.beats.remove(self._store.holder(worker_id))

    def requeue_lost(self, *, stale_s: float, is_alive: Liveness = alive_here) -> int:
        """Return the claims of dead workers to the queue; how many were moved."""
        return self._janitor.requeue_lost(stale_s=stale_s, is_alive=is_alive)

    def watch(self, ring: Callable[[], None]) -> Watch | None:
        """By inotify, which sees nothing of what other machines do on a shared file system."""
        return None if self.shared else watched(self._store.shards.folders, ring)

    def waiting(self) -> int:
        """Requests that nobody has claimed, of any kind of device: one listing at most."""
        self._line.look()
        return self._line.waiting()

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
        """Whether workers shall leave. On a shared file system asked every few seconds only."""
        now_s = self._clock()
        if self.shared and now_s < self._open_until_s:
            return False
        self._open_until_s = now_s + SHARED_CLOSED_S
        # A file system that doesn't answer has not said so: it is asked again.
        with suppress(TryAgainLater):
            return self._files.exists(self.root / CLOSED_FILE)
        return False

    def _remove(self, path: Path) -> None:
        with suppress(Gone):
            self._files.unlink(path)


def _holds(claim: Claim) -> tuple[Hold, Hold]:
    """The two names that a claim may have in cur/: being judged (the usual one), and claimed."""
    hold = Hold.parse(f"{claim.token}.c")
    if hold is None:
        raise ValueError(f"not a claim of this kind of mailbox: {claim.token!r}")
    return hold.as_judging(True), hold
