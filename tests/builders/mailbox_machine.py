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
        self.doubtful: set[str] = set()
        """Tokens of claims that may have been taken away: an agent was killed doing it."""
        self.perhaps: set[str] = set()
        """Requests that an agent was killed withdrawing: none stands, and they may be in."""
        self.half: set[str] = set()
        """Requests that an agent was killed discarding, whose result stands still."""
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
        self.discard_what_is_journalled()
        told = self.attempt(self.disk, lambda: self.agent.put(REQUESTS[i]))
        self.was_told(IDS[i], told)
        assert not self.agent.put(REQUESTS[i])
        self.now_live(IDS[i], told)

    @rule()
    def put_all(self) -> None:
        self.discard_what_is_journalled()
        told = self.attempt(self.disk, lambda: self.agent.put_many(REQUESTS))
        assert self.agent.put_many(REQUESTS) == (False,) * len(IDS)
        for request_id, new in zip(IDS, told, strict=True):
            self.was_told(request_id, new)
            self.now_live(request_id, new)

    @rule(i=st.integers(0, 2), steps=st.integers(0, 6))
    def agent_is_killed_putting(self, i: int, steps: int) -> None:
        self.discard_what_is_journalled()
        self.agent_dies(steps, lambda box: box.put_many([REQUESTS[i], REQUESTS[0]]))
        # The agent that continues puts again: one more never makes two of it.
        self.troubled = False
        for n in (0, i):
            self.now_live(IDS[n], self.agent.put(REQUESTS[n]))
            assert not self.agent.put(REQUESTS[n])

    def agent_dies(self, steps: int, act: Callable[[FileMailbox], R]) -> R | None:
        """Another agent is killed inside an operation; what that said if it came to its end."""
        files = MortalFiles(die)
        mailbox = FileMailbox(self.root, files=files)
        files.steps_left = steps
        with suppress(Killed):
            return act(mailbox)
        return None

    def was_told(self, request_id: str, told: bool) -> None:
        if request_id not in self.perhaps and not self.troubled:
            assert told == (request_id not in self.live)

    def now_live(self, request_id: str, told: bool) -> None:
        assert not (told and request_id in self.live) or self.troubled, "it was lost"
        was_in = request_id in self.live or (request_id in self.perhaps and not told)
        self.live.add(request_id)
        if not was_in:
            self.deaths[request_id] = 0
            self.unsure.discard(request_id)
            self.ghosts |= self.tokens(request_id)
        self.perhaps.discard(request_id)

    def now_gone(self, request_id: str) -> None:
        for there in (self.live, self.perhaps, self.half):
            there.discard(request_id)
        self.standing.pop(request_id, None)
        self.ghosts |= self.tokens(request_id)

    def tokens(self, request_id: str) -> set[str]:
        return {c.token for _, c in self.pairs() if c.request.request_id == request_id}

    @rule()
    def read_results(self) -> None:
        assert self.agent.results(IDS) == self.standing

    @rule(i=st.integers(0, 2))
    def discard(self, i: int) -> None:
        if IDS[i] in self.standing:
            self.attempt(self.disk, lambda: self.agent.discard([IDS[i]]))
            self.now_gone(IDS[i])

    @precondition(lambda self: self.standing)
    @rule(steps=st.integers(0, 14))
    def agent_is_killed_discarding(self, steps: int) -> None:
        """All that stand. Workers may meet what is left of them before an agent comes back."""
        self.agent_dies(steps, lambda box: box.discard(list(self.standing)))
        found = self.agent.results(IDS)
        assert found.items() <= self.standing.items()
        for request_id in set(self.standing) - set(found):
            # The result goes last: nothing else of it is left.
            self.now_gone(request_id)
        self.live -= set(found)
        self.half |= set(found)
        for request_id in found:
            self.doubtful |= self.tokens(request_id)

    def discard_what_is_journalled(self) -> None:
        """An agent puts nothing again that it has journalled; this one discards it first."""
        self.agent.discard(self.half)
        for request_id in list(self.half):
            self.now_gone(request_id)

    @rule(i=st.integers(0, 2))
    def withdraw(self, i: int) -> None:
        left = self.attempt(self.disk, lambda: self.agent.withdraw([IDS[i]]))
        if IDS[i] in self.standing or self.is_judged(IDS[i]):
            assert left == {IDS[i]}
        if not left:
            self.now_gone(IDS[i])

    @rule(which=st.sets(st.integers(0, 2), min_size=1), steps=st.integers(0, 8))
    def agent_is_killed_withdrawing(self, which: set[int], steps: int) -> None:
        """Workers may meet what is left of it before an agent withdraws it or puts it again."""
        asked = {IDS[i] for i in which}
        left = self.agent_dies(steps, lambda box: box.withdraw(asked))
        stay = {i for i in asked if i in self.standing or self.is_judged(i)}
        assert left is None or stay <= left
        for request_id in () if left is None else asked - left:
            self.now_gone(request_id)
        for request_id in (asked - stay) & self.live if left is None else ():
            self.live.discard(request_id)
            self.perhaps.add(request_id)
            self.unsure.add(request_id)
            self.doubtful |= self.tokens(request_id)

    def is_judged(self, request_id: str) -> bool:
        """Whether a worker that lives has begun it and holds it for certain."""
        lost = self.ghosts | self.doubtful
        return any(
            c.token in w.judging and c.token not in lost and c.request.request_id == request_id
            for w, c in self.pairs()
        )

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

        def two_looks() -> None:
            # Both again where one fails: it may have forgotten for how long nobody was seen.
            for waited_s in (0.0, 5e8):
                self.now_s += waited_s
                for worker in self.workers:
                    worker.beat()
                self.agent.requeue_lost(stale_s=1e9, is_alive=lambda b: None)

        self.attempt(self.disk, two_looks)
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
                self.now_stands(request_id, found)

    def now_stands(self, request_id: str, result: EvalResult) -> None:
        """What can be committed was not taken back."""
        assert request_id in self.live | self.perhaps
        self.perhaps.discard(request_id)
        self.live.add(request_id)
        self.standing[request_id] = result

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
            assert request_id in self.live | self.perhaps
            assert request_id not in self.standing
            assert 1 <= claim.attempt <= MAX_ATTEMPTS
            if request_id not in self.unsure:
                assert claim.attempt == 1 + self.deaths[request_id]
            assert self.tokens(request_id) <= self.ghosts | self.doubtful
            worker.claims.append(claim)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def judge(self, data: st.DataObject) -> None:
        self.begin(*self.some_claim(data))

    def begin(self, worker: Worker, claim: Claim) -> None:
        begun = self.attempt(worker.files, lambda: worker.mailbox.judging(claim))
        if claim.token in self.doubtful:
            self.doubtful.discard(claim.token)
            self.ghosts |= set() if begun else {claim.token}
        assert begun == (claim.token not in self.ghosts)
        worker.judging.add(claim.token)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def commit_result(self, data: st.DataObject) -> None:
        worker, claim = self.some_claim(data)
        verdict = self.verdict(claim)
        won = self.attempt(worker.files, lambda: worker.mailbox.commit(claim, verdict))
        self.committed(worker, claim, verdict, won)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data())
    def commit_all(self, data: st.DataObject) -> None:
        """What one worker holds, in one call. Of one request it may hold two claims."""
        worker, _ = self.some_claim(data)
        judged = [(claim, self.verdict(claim)) for claim in worker.claims]
        told = self.attempt(worker.files, lambda: worker.mailbox.commit_many(judged))
        for (claim, verdict), won in zip(judged, told, strict=True):
            self.committed(worker, claim, verdict, won)

    def committed(self, worker: Worker, claim: Claim, verdict: EvalResult, won: bool) -> None:
        request_id = claim.request.request_id
        found = self.agent.results([request_id])
        if request_id not in self.standing and request_id in self.perhaps:
            waited_for = won or (self.troubled and found == {request_id: verdict})
        else:
            waited_for = request_id in self.live and request_id not in self.standing
        # A try that failed may have committed it: then the second found it standing.
        assert won == waited_for or self.troubled
        if waited_for:
            self.now_stands(request_id, verdict)
        assert found.get(request_id) == self.standing.get(request_id)
        assert not worker.mailbox.commit(claim, self.verdict(claim))
        worker.claims.remove(claim)

    @precondition(lambda self: any(w.claims for w in self.workers))
    @rule(data=st.data(), tried=st.booleans())
    def release(self, data: st.DataObject, tried: bool) -> None:
        worker, claim = self.some_claim(data)
        request_id = claim.request.request_id
        self.attempt(worker.files, lambda: worker.mailbox.release(claim, tried=tried))
        worker.claims.remove(claim)
        if claim.token in self.doubtful or self.troubled:
            self.unsure.add(request_id)
        elif claim.token not in self.ghosts and request_id not in self.standing:
            self.deaths[request_id] += tried and claim.attempt < MAX_ATTEMPTS

    @rule(w=st.integers(0, 1))
    def leave(self, w: int) -> None:
        """By plan: claims are given back, and nobody need look after this worker any more."""
        worker = self.workers[w]
        self.attempt(worker.files, lambda: self.go(worker))
        assert worker.token not in {seen.beat.start_token for seen in self.agent.workers()}
        self.dead.add(worker.token)
        self.workers[w] = self.fresh()

    def go(self, worker: Worker) -> None:
        for claim in worker.claims:
            worker.mailbox.release(claim)
        worker.mailbox.retire(worker.name)

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
            self.begin(worker, claim)
        self.kill(w)
        self.recover()

    @rule(w=st.integers(0, 1), steps=st.integers(0, 12), data=st.data())
    def kill_within(self, w: int, steps: int, data: st.DataObject) -> None:
        """The worker is killed inside an operation: that may have happened or not."""
        worker = self.workers[w]
        claims = list(worker.claims)
        judged = [(claim, self.verdict(claim)) for claim in claims]
        # With each the claims of which nobody can say whether it died judging them.
        operations: list[tuple[Callable[[], object], list[Claim]]] = [
            (lambda: worker.mailbox.claim(worker.name, frozenset(KINDS), 2), []),
            (worker.beat, []),
            (
                lambda: worker.mailbox.requeue_lost(
                    stale_s=1e9, is_alive=lambda b: b.start_token not in self.dead
                ),
                [],
            ),
            (lambda: self.go(worker), claims),
        ]
        if judged:
            one, verdict = data.draw(st.sampled_from(judged))
            operations += [
                (lambda: worker.mailbox.judging(one), [one]),
                (lambda: worker.mailbox.release(one), [one]),
                (lambda: worker.mailbox.commit(one, verdict), []),
                (lambda: worker.mailbox.commit_many(judged), []),
            ]
        operation, unsure = data.draw(st.sampled_from(operations))
        self.unsure |= {claim.request.request_id for claim in unsure}
        worker.files.steps_left = steps
        with suppress(Killed):
            operation()
        found = self.agent.results(IDS)
        for claim, result in judged:
            request_id = claim.request.request_id
            if request_id not in self.standing and found.get(request_id) == result:
                self.now_stands(request_id, result)
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
        self.discard_what_is_journalled()
        for i in range(len(IDS)):
            if IDS[i] in self.perhaps:
                self.put(i)
        for w in range(len(self.workers)):
            self.kill(w)
        self.recover()
        # A worker that left knew nothing of what it took when the disk failed: no beat names it.
        self.now_s += 1e9
        self.recover()
        last = self.fresh()
        while claims := last.mailbox.claim("last", frozenset(KINDS), 10):
            for claim in claims:
                assert last.mailbox.judging(claim)
                assert last.mailbox.commit(claim, self.verdict(claim))
        assert set(self.agent.results(IDS)) == self.live
        counts = self.agent.counts()
        assert (counts.new, counts.claimed, counts.done) == (0, 0, len(self.live))
