"""Workers whose NFS clients show for 30 s what they saw before: nothing lost, nothing twice, and
what becomes visible is claimed within 5 s, with one look in five seconds."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from builders.stale_files import StaleFiles

from pike_hpc.mailbox import Claim, FileMailbox, WorkerBeat
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task
from pike_hpc.worker import WorkerOptions
from pike_hpc.worker.pace import Backoff

CPU = frozenset({"cpu"})
LIFE_S = 30.0
TASK = Task(suite="s", id="1", name="one", source="x")


def request(number: int) -> EvalRequest:
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


class Worker:
    """One client with a mailbox, looking as the worker's loop does."""

    def __init__(
        self, root: Path, name: str, clock, rng: random.Random, life_s: float = LIFE_S
    ) -> None:
        self.name = name
        self.files = StaleFiles(clock, life_s)
        self.mailbox = FileMailbox(root, files=self.files, clock=clock, shared=True)
        options = WorkerOptions(worker_id=name).on_shared_disk()
        self.stale_s = options.stale_s
        self.backoff = Backoff(options.poll_min_s, options.poll_max_s, rng)
        self.counter = itertools.count()

    def beat(self) -> None:
        self.mailbox.beat(
            WorkerBeat(
                worker_id=self.name,
                host=self.name,
                pid=1,
                start_token=self.name,
                counter=next(self.counter),
                state="idle",
                device_kind="cpu",
                started_at=0.0,
            )
        )


@pytest.mark.parametrize(("life_s", "shards"), [(0.0, 1), (30.0, 1), (30.0, 4)])
def test_what_an_idle_worker_can_see_it_claims_within_five_seconds(tmp_path, life_s, shards):
    now_s, rng = [0.0], random.Random(1)
    agent = FileMailbox(tmp_path, files=StaleFiles(lambda: now_s[0], 0.0), shards=shards)
    worker = Worker(tmp_path, "w", lambda: now_s[0], rng, life_s)
    waits, look_at = [], 0.0
    for number in range(400):
        put_at = now_s[0] + rng.uniform(60, 180)
        while look_at < put_at:
            now_s[0] = look_at
            assert not worker.mailbox.closed()
            assert worker.mailbox.claim("w", CPU) == ()
            look_at += worker.backoff.pause_s()
        now_s[0] = put_at
        agent.put(request(number))
        (name,) = (tmp_path / "new").rglob("*.a1")
        visible_at = worker.files.visible_at(name.parent)
        claims = ()
        while not claims:
            now_s[0] = max(look_at, put_at)
            claims = worker.mailbox.claim("w", CPU)
            look_at = now_s[0] + worker.backoff.pause_s()
        waits.append(now_s[0] - visible_at)
        worker.backoff.reset()
        assert worker.mailbox.judging(claims[0])
        assert worker.mailbox.commit(claims[0], done(claims[0].request))
    waits.sort()
    assert waits[0] >= 0
    assert waits[int(0.95 * len(waits))] < 5.0


def done(of: EvalRequest) -> EvalResult:
    return EvalResult(key=of.key, status=EvalStatus.TIMEOUT)


def test_an_idle_worker_looks_once_in_five_seconds():
    options = WorkerOptions(worker_id="w").on_shared_disk()
    backoff = Backoff(options.poll_min_s, options.poll_max_s, random.Random(1))
    pauses = [backoff.pause_s() for _ in range(1000)]
    assert sum(pauses[:4]) > 4
    assert 5.0 <= sum(pauses[4:]) / len(pauses[4:]) <= 5.2


@pytest.mark.parametrize("seed", range(2))
def test_many_stale_workers_judge_everything_and_commit_it_once(tmp_path, seed):
    now_s, rng = [0.0], random.Random(seed)
    # With one folder of waiting requests, and with several.
    agent = FileMailbox(
        tmp_path, files=StaleFiles(lambda: now_s[0], LIFE_S), shared=True, shards=1 + 2 * seed
    )
    workers = [Worker(tmp_path, f"w{i}", lambda: now_s[0], rng) for i in range(6)]
    sent = [request(i) for i in range(60)]
    ids = [one.request_id for one in sent]
    won: Counter[str] = Counter()
    lost_turns = put = 0
    held: dict[int, tuple[Claim, ...]] = {}
    queue = [(rng.uniform(0, 5), i) for i in range(len(workers))]
    heapq.heapify(queue)
    while now_s[0] < 2000:
        now_s[0], i = heapq.heappop(queue)
        while put < len(sent) and put * 4 < now_s[0]:
            agent.put(sent[put])
            put += 1
        worker = workers[i]
        for claim in held.pop(i, ()):
            stands = worker.mailbox.commit(claim, done(claim.request))
            won[claim.request.request_id] += stands
            lost_turns += not stands
        worker.beat()
        worker.mailbox.requeue_lost(stale_s=worker.stale_s, is_alive=lambda beat: None)
        claims = worker.mailbox.claim(worker.name, CPU, rng.choice([1, 3]))
        held[i] = tuple(claim for claim in claims if worker.mailbox.judging(claim))
        # One in five is frozen while it judges, is taken for dead, and comes back.
        judging_s = 400.0 if rng.random() < 0.2 else 10.0
        heapq.heappush(queue, (now_s[0] + (judging_s if claims else worker.backoff.pause_s()), i))
    assert put == len(sent)
    assert lost_turns > 0, "nobody came back late: this seed shows nothing"
    found = FileMailbox(tmp_path).results(ids)
    assert set(found) == set(ids)
    judged = {i for i, result in found.items() if result.status is EvalStatus.TIMEOUT}
    assert {i for i, count in won.items() if count} == judged
    assert max(won.values()) == 1
    counts = FileMailbox(tmp_path).counts()
    assert (counts.new, counts.done) == (0, len(sent))
