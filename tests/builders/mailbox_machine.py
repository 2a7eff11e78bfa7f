"""Any order of a mailbox's operations and of kills in the middle of them, against a model:
nothing is lost, nothing is committed twice, attempts are bounded and counted exactly."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from builders.mortal_files import MortalFiles
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pike_hpc.mailbox import Claim, FileMailbox, WorkerBeat
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

R = TypeVar("R")
KINDS = ("cpu", "gpu")
MAX_ATTEMPTS = 3
TASK = Task(suite="s", id="1", name="one", source="x")
REQUESTS = [
    EvalRequest(task=TASK, candidate_source=f"# {i}", device_kind=KINDS[i % 2], image_digest="i")
    for i in range(3)
]
IDS = [r.request_id for r in REQUESTS]


class Killed(BaseException):
    """kill -9, as the file system sees it: no operation after this one."""


def die() -> NoReturn:
    raise Killed


class Worker:
    """One process: its mailbox, its claims, and which of them it has begun to judge."""

    def __init__(self, root: Path, number: int, files: MortalFiles) -> None:
        self.files = files
        self.mailbox = FileMailbox(root, files=self.files)
        self.name = "same-id-for-all"
        self.token = f"process {number}"
        self.claims: list[Claim] = []
        self.judging: set[str] = set()
        self.counter = 0
        self.beat()

    def beat(self) -> None:
        self.counter += 1
        self.mailbox.beat(
            WorkerBeat(
                worker_id=self.name,
                host="h",
                pid=1,
                start_token=self.token,
                counter=self.counter,
                job=self.token,
                state="idle",
                device_kind="cpu",
                started_at=0.0,
            )
        )


class MailboxMachine(RuleBasedStateMachine):
    """The model: which requests are in, how often workers died judging each, what stands."""

    commit = "link"
    shards = 1

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="mailbox-machine-"))
        self.root = self.folder / "box"
        self.disk = self.new_files()
        self.now_s = 0.0
        self.agent = FileMailbox(
            self.root,
            files=self.disk,
            commit=self.commit,
            shards=self.shards,
            clock=lambda: self.now_s,
            jobs=lambda jobs: {job: job not in self.dead for job in jobs},
        )
        self.troubled = False
        """Whether the last operation met a disk that failed: what it said may be less exact."""
        self.processes = 0
        self.workers: list[Worker] = []
        self.dead: set[str] = set()
        self.live: set[str] = set()
        self.deaths: dict[str, int] = {}
        self.unsure: set[str] = set()
        self.standing: dict[str, EvalResult] = {}
        self.ghosts: set[str] = set()
        """Tokens of claims that were taken away from a worker that lives on."""
        self.commits = 0

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            shutil.rmtree(self.folder)

    @initialize()
    def two_workers(self) -> None:
        self.workers = [self.fresh(), self.fresh()]

    def fresh(self) -> Worker:
        self.processes += 1
        return Worker(self.root, self.processes, self.new_files())

    def new_files(self) -> MortalFiles:
        """The disk as one process has it."""
        return MortalFiles(die)

    def attempt(self, files: MortalFiles, call: Callable[[], R]) -> R:
        """One operation, until it is done."""
        return call()

    # what agents do

    @rule(i=st.integers(0, 2))
    def put(self, i: int) -> None:
        told = self.attempt(self.disk, lambda: self.agent.put(REQUESTS[i]))
        assert told == (IDS[i] not in self.live) or self.troubled
        assert not self.agent.put(REQUESTS[i])
        self.now_live(i)

    @rule()
    def put_all(self) -> None:
        told = self.attempt(self.disk, lambda: self.agent.put_many(REQUESTS))
        assert told == tuple(i not in self.live for i in IDS) or self.troubled
        assert self.agent.put_many(REQUESTS) == (False,) * len(IDS)
        for i in range(len(IDS)):
            self.now_live(i)

    @rule(i=st.integers(0, 2), steps=st.integers(0, 6))
    def agent_is_killed_putting(self, i: int, steps: int) -> None:
        files = MortalFiles(die)
        mailbox = FileMailbox(self.root, files=files)
        files.steps_left = steps
        with suppress(Killed):
            mailbox.put_many([REQUESTS[i], REQUESTS[0]])
        if self.agent.put(REQUESTS[0]) or IDS[0] not in self.live:
            self.now_live(0)
        # The agent that continues puts again: one more never makes two of it.
        self.agent.put(REQUESTS[i])
        assert not self.agent.put(REQUESTS[i])
        self.now_live(i)

    def now_live(self, i: int) -> None:
        if IDS[i] not in self.live:
            self.live.add(IDS[i])
            self.deaths[IDS[i]] = 0
            self.unsure.discard(IDS[i])

    @rule()
    def read_results(self) -> None:
        assert self.agent.results(IDS) == self.standing

    @rule(i=st.integers(0, 2))
    def discard(self, i: int) -> None:
        if IDS[i] in self.standing:
            self.attempt(self.disk, lambda: self.agent.discard([IDS[i]]))
            del self.standing[IDS[i]]
            self.live.discard(IDS[i])
            self.ghosts |= {c.token for _, c in self.pairs() if c.request.request_id == IDS[i]}

    @rule(i=st.integers(0, 2))
    def withdraw(self, i: int) -> None:
        left = self.attempt(self.disk, lambda: self.agent.withdraw([IDS[i]]))
        held = [c for w, c in self.pairs() if c.token in w.judging and c.token not in self.ghosts]
        if IDS[i] in self.standing or IDS[i] in {c.request.request_id for c in held}:
            assert left == {IDS[i]}
        if not left:
            self.live.discard(IDS[i])
            self.ghosts |= {c.token for _, c in self.pairs() if c.request.request_id == IDS[i]}

    @rule()
    def recover(self) -> None:
        self.attempt(
            self.disk,
            lambda: self.agent.requeue_lost(
                stale_s=1e9, is_alive=lambda b: b.start_token not in self.dead
            ),
        )
        self.meet_dead_letters()

    @rule()
    def recover_by_their_jobs(self) -> None:
        """From another host: those that beat are no suspects, and of the others Slurm knows."""
        for waited_s in (0.0, 5e8):
            self.now_s += waited_s
            for worker in self.workers:
                worker.beat()
            self.attempt(
                self.disk, lambda: self.agent.requeue_lost(stale_s=1e9, is_alive=lambda b: None)
            )
        assert {seen.beat.start_token for seen in self.agent.workers()}.isdisjoint(self.dead)
        self.meet_dead_letters()

    @rule(w=st.integers(0, 1))
    def take_for_dead(self, w: int) -> None:
        """A paused worker loses its claims, and then goes on as if nothing had happened."""
        worker = self.workers[w]
        gone = self.dead | {worker.token}
        self.attempt(
            self.disk,
            lambda: self.agent.requeue_lost(
                stale_s=1e9, is_alive=lambda b: b.start_token not in gone
            ),
        )
        self.count_deaths(worker)
        self.ghosts |= {c.token for c in worker.claims}
        worker.beat()
        self.meet_dead_letters()

    def count_deaths(self, worker: Worker) -> None:
        for claim in worker.claims:
            request_id = claim.request.request_id
            held = claim.token in worker.judging and claim.token not in self.ghosts
            if held and request_id not in self.standing:
                self.deaths[request_id] += 1

    def pairs(self) -> list[tuple[Worker, Claim]]:
        return [(w, c) for w in self.workers for c in w.claims]

    def meet_dead_letters(self) -> None:
        for request_id, found in self.agent.results(IDS).items():
            if request_id not in self.standing:
                assert found.status is EvalStatus.WORKER_LOST
                exact = request_id not in self.unsure
                assert not exact or self.deaths[request_id] == MAX_ATTEMPTS
                self.standing[request_id] = found

    # what workers do

    @rule(
        w=st.integers(0, 1),
        kinds=st.sampled_from([set(KINDS), {"cpu"}]),
        limit=st.integers(1, 3),
    )
    def claim(self, w: int, kinds: set[str], limit: int) -> None:
        worker = self.workers[w]
        claims = self.attempt(
            worker.files, lambda: worker.mailbox.claim(worker.name, frozenset(kinds), limit)
        )
        for claim in claims:
            request_id = claim.request.request_id
            assert claim.request.device_kind in kinds
            assert request_id in self.live
            assert request_id not in self.standing
            assert 1 <= claim.attempt <= MAX_ATTEMPTS
            if request_id not in self.unsure:
                assert claim.attempt == 1 + self.deaths[request_id]
            held = [c for _, c in self.pairs() if c.token not in self.ghosts]
            assert request_id not in {c.request.request_id for c in held}
            worker.claims.append(claim)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def judge(self, data: st.DataObject) -> None:
        worker, claim = self.some_claim(data)
        begun = self.attempt(worker.files, lambda: worker.mailbox.judging(claim))
        assert begun == (claim.token not in self.ghosts)
        worker.judging.add(claim.token)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def commit_result(self, data: st.DataObject) -> None:
        worker, claim = self.some_claim(data)
        verdict, request_id = self.verdict(claim), claim.request.request_id
        waited_for = request_id in self.live and request_id not in self.standing
        won = self.attempt(worker.files, lambda: worker.mailbox.commit(claim, verdict))
        if self.troubled and waited_for:
            # The try that failed may have committed it: then the second found it standing.
            assert self.agent.results([request_id]) == {request_id: verdict}
        else:
            assert won == waited_for
        assert not worker.mailbox.commit(claim, self.verdict(claim))
        worker.claims.remove(claim)
        if waited_for:
            self.standing[request_id] = verdict

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        worker, claim = self.some_claim(data)
        self.attempt(worker.files, lambda: worker.mailbox.release(claim))
        worker.claims.remove(claim)

    @rule(w=st.integers(0, 1))
    def kill(self, w: int) -> None:
        self.count_deaths(self.workers[w])
        self.dead.add(self.workers[w].token)
        self.workers[w] = self.fresh()

    @rule(w=st.integers(0, 1))
    def die_judging_everything(self, w: int) -> None:
        """The road to a dead letter, in one rule so that it is walked often."""
        self.claim(w, set(KINDS), 3)
        worker = self.workers[w]
        for claim in worker.claims:
            assert worker.mailbox.judging(claim) == (claim.token not in self.ghosts)
            worker.judging.add(claim.token)
        self.kill(w)
        self.recover()

    @rule(w=st.integers(0, 1), steps=st.integers(0, 8), data=st.data())
    def kill_within(self, w: int, steps: int, data: st.DataObject) -> None:
        """The worker is killed inside an operation: that may have happened or not."""
        worker = self.workers[w]
        operations: list[Callable[[], object]] = [
            lambda: worker.mailbox.claim(worker.name, frozenset(KINDS), 2),
            worker.beat,
            lambda: worker.mailbox.requeue_lost(
                stale_s=1e9, is_alive=lambda b: b.start_token not in self.dead
            ),
        ]
        if worker.claims:
            claim = data.draw(st.sampled_from(worker.claims))
            verdict = self.verdict(claim)
            operations = [
                lambda: worker.mailbox.judging(claim),
                lambda: worker.mailbox.commit(claim, verdict),
                lambda: worker.mailbox.release(claim),
                *operations,
            ]
            self.unsure.add(claim.request.request_id)
        worker.files.steps_left = steps
        with suppress(Killed):
            data.draw(st.sampled_from(operations))()
        if worker.claims:
            found = self.agent.results([claim.request.request_id])
            if found == {claim.request.request_id: verdict}:
                self.standing |= found
        self.kill(w)
        self.meet_dead_letters()

    def some_claim(self, data: st.DataObject) -> tuple[Worker, Claim]:
        return data.draw(st.sampled_from(self.pairs()))

    def verdict(self, claim: Claim) -> EvalResult:
        self.commits += 1
        message = f"commit {self.commits}"
        return EvalResult(key=claim.request.key, status=EvalStatus.TIMEOUT, message=message)

    # what always holds

    @invariant()
    def what_stands_stands(self) -> None:
        found = self.agent.results(list(self.standing))
        assert found == self.standing

    def everything_ends(self) -> None:
        """All workers die; one that lives then finds and ends every request that is in."""
        for w in range(len(self.workers)):
            self.kill(w)
        self.recover()
        last = self.fresh()
        while claims := last.mailbox.claim("last", frozenset(KINDS), 10):
            for claim in claims:
                assert last.mailbox.judging(claim)
                assert last.mailbox.commit(claim, self.verdict(claim))
        assert set(self.agent.results(IDS)) == self.live
        counts = self.agent.counts()
        assert (counts.new, counts.claimed, counts.done) == (0, 0, len(self.live))
