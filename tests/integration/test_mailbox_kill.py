"""kill -9 at every single step of a mailbox's life; the survivors then end what was begun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

import pytest
from builders.mortal_files import MortalFiles

from pike_hpc.mailbox import (
    MAX_ATTEMPTS,
    Claim,
    FileMailbox,
    WorkerBeat,
    alive_here,
    host_name,
    start_token,
)
from pike_hpc.mailbox.locks import held
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

FORK = multiprocessing.get_context("fork")
CPU = frozenset({"cpu"})
TASK = Task(suite="s", id="1", name="one", source="x")
REQUESTS = [
    EvalRequest(task=TASK, candidate_source=f"# {i}", device_kind="cpu", image_digest="i")
    for i in range(6)
]
IDS = [r.request_id for r in REQUESTS]
JOURNALLED, WITHDRAWN, DOOMED = IDS[0], IDS[3:5], IDS[5]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def result(claim: Claim, message: str) -> EvalResult:
    return EvalResult(key=claim.request.key, status=EvalStatus.TIMEOUT, message=message)


def mark(root: Path, event: str) -> None:
    """Leave word beside the mailbox of how far the life came."""
    root.with_name(f"{root.name}.{event}").touch()


def came_to(root: Path, event: str) -> bool:
    return root.with_name(f"{root.name}.{event}").exists()


def whole_life(root: Path, steps: int, commit: str, shards: int) -> None:
    """Everything a mailbox does, in one process.

    Of the requests one ends journalled and discarded, two are committed, two withdrawn, and one
    ends as a dead letter.
    """
    now_s = [0.0]
    files = MortalFiles(die, steps)
    mailbox = FileMailbox(
        root,
        files=files,
        commit=commit,
        shards=shards,
        clock=lambda: now_s[0],
        jobs=lambda jobs: dict.fromkeys(jobs, True),
    )
    mailbox.put(REQUESTS[0])
    mailbox.put_many(REQUESTS)
    mark(root, "put")
    mailbox.beat(beat("w"))
    first, second = mailbox.claim("w", CPU, 2)
    mailbox.judging(first)
    mailbox.commit(first, result(first, "before the kill"))
    mailbox.judging(second)
    mailbox.release(second)
    both = mailbox.claim("w", CPU, 2)
    mailbox.commit_many([(claim, result(claim, "before the kill")) for claim in both])
    assert set(mailbox.results(IDS)) == set(IDS[:3])
    mark(root, "discarding")
    mailbox.discard([JOURNALLED])
    (held,) = mailbox.claim("w", CPU)
    assert held.request.request_id == WITHDRAWN[0]
    mark(root, "withdrawing")
    assert mailbox.withdraw(WITHDRAWN) == frozenset()
    mark(root, "withdrawn")
    for death in range(1, MAX_ATTEMPTS + 1):
        # A process of its own, as the mailbox sees it; the janitor is told that it is gone.
        doomed = FileMailbox(root, files=files)
        doomed.beat(beat("doomed"))
        (claim,) = doomed.claim("doomed", CPU)
        assert (claim.request.request_id, claim.attempt) == (DOOMED, death)
        doomed.judging(claim)
        mailbox.requeue_lost(stale_s=60, is_alive=lambda b: b.worker_id != "doomed")
        mark(root, f"death {death}")
    for _ in range(2):
        # As seen from another host: the second time it is suspect, and Slurm is asked.
        mailbox.requeue_lost(stale_s=60, is_alive=lambda beat: None)
        now_s[0] += 20
    mailbox.retire("w")
    mark(root, "retired")
    mailbox.close()


def beat(worker_id: str) -> WorkerBeat:
    return WorkerBeat(
        worker_id=worker_id,
        host=host_name(),
        pid=os.getpid(),
        start_token=start_token(),
        counter=1,
        job="1.0",
        state="idle",
        device_kind="cpu",
        started_at=0.0,
    )


@pytest.mark.parametrize(
    ("commit", "shards"), [("link", 1), ("link", 3), ("renameat2", 1), ("directory", 1)]
)
def test_killed_at_any_step_nothing_is_lost_and_what_stood_stands(tmp_path, commit, shards):
    steps, code = 0, None
    while code != 0:
        root = tmp_path / str(steps)
        process = FORK.Process(target=whole_life, args=(root, steps, commit, shards))
        process.start()
        process.join()
        code = process.exitcode
        assert code in (0, -signal.SIGKILL)
        survive(root, commit, shards)
        steps += 1
    assert steps > 75


def survive(root: Path, commit: str, shards: int) -> None:
    now_s = [0.0]
    mailbox = FileMailbox(
        root, files=MortalFiles(die), clock=lambda: now_s[0], commit=commit, shards=shards
    )
    mailbox.reopen()
    assert not (came_to(root, "retired") and mailbox.workers())
    before = mailbox.results(IDS)
    journalled = {JOURNALLED} if not mailbox_knows(mailbox, JOURNALLED) and before else set()
    for one in REQUESTS:
        if one.request_id in journalled:
            continue
        put_again = mailbox.put(one)
        if one.request_id in WITHDRAWN and came_to(root, "withdrawing"):
            assert put_again or not came_to(root, "withdrawn"), "what was withdrawn is still there"
        elif came_to(root, "put") and not (
            one.request_id == JOURNALLED and came_to(root, "discarding")
        ):
            assert not put_again, "a request that was put was lost"
    # A worker that had beaten is known to be dead at once; one that had not, after a while.
    mailbox.requeue_lost(stale_s=60, is_alive=alive_here)
    now_s[0] += 61
    mailbox.requeue_lost(stale_s=60, is_alive=alive_here)
    assert mailbox.workers() == ()
    assert mailbox.counts().claimed == 0
    deaths = sum(came_to(root, f"death {n}") for n in range(1, MAX_ATTEMPTS + 1))
    for claim in mailbox.claim("survivor", CPU, 10):
        # Besides those that the life has noted, the kill may have been one.
        died = deaths if claim.request.request_id == DOOMED else 0
        assert died + 1 <= claim.attempt <= died + 2
        assert mailbox.judging(claim)
        assert mailbox.commit(claim, result(claim, "by the survivor"))
    after = mailbox.results(IDS)
    assert set(after) == set(IDS) - journalled
    assert {i: after[i] for i in before} == before
    dead = {i for i in after if after[i].status is EvalStatus.WORKER_LOST}
    # The kill may have been the third death.
    assert dead == {DOOMED} if deaths == MAX_ATTEMPTS else dead <= {DOOMED}
    assert not dead or deaths >= MAX_ATTEMPTS - 1
    counts = mailbox.counts()
    assert (counts.new, counts.claimed) == (0, 0)
    # The copy for people is written after the verdict.
    assert counts.dead == 1 if deaths == MAX_ATTEMPTS else counts.dead <= len(dead)
    now_s[0] += 3601
    mailbox.requeue_lost(stale_s=60, is_alive=alive_here)
    assert [p.name for p in (root / "tmp").iterdir()] == []


def mailbox_knows(mailbox: FileMailbox, request_id: str) -> bool:
    """Whether the life came to discarding the request: afterwards no file names it."""
    return any(request_id in path.name for path in mailbox.root.rglob("*"))


def work(root: Path, name: str, counts: multiprocessing.Queue) -> None:
    mailbox, mine = FileMailbox(root), []
    while claims := mailbox.claim(name, CPU, 3):
        for claim in claims:
            assert mailbox.judging(claim)
            assert mailbox.commit(claim, result(claim, name))
            mine.append(claim.request.request_id)
    counts.put(mine)


def test_four_processes_share_five_hundred_requests(tmp_path):
    root = tmp_path / "box"
    mailbox = FileMailbox(root)
    ids = []
    for i in range(500):
        one = EvalRequest(task=TASK, candidate_source=f"{i}", device_kind="cpu", image_digest="i")
        assert mailbox.put(one)
        ids.append(one.request_id)
    queue = FORK.Queue()
    workers = [FORK.Process(target=work, args=(root, f"w{i}", queue)) for i in range(4)]
    for worker in workers:
        worker.start()
    shares = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(i for share in shares for i in share) == sorted(ids)
    assert set(mailbox.results(ids)) == set(ids)
    assert mailbox.counts().new == mailbox.counts().claimed == 0


def hold_for_ever(root: Path, held_now: multiprocessing.Event) -> None:
    with held("claims", root / "locks" / "queue", 5) as mine:
        assert mine
        held_now.set()
        signal.pause()


def test_a_lock_that_outlives_its_killed_holder_only_slows_the_others(tmp_path):
    mailbox = FileMailbox(tmp_path, lock="claims")
    held_now = FORK.Event()
    holder = FORK.Process(target=hold_for_ever, args=(tmp_path, held_now))
    holder.start()
    assert held_now.wait(30)
    holder.kill()
    holder.join()
    began = time.monotonic()
    # A mark without a request, as a killed agent leaves it, is looked behind under the lock.
    (tmp_path / "known" / IDS[0]).touch()
    assert mailbox.put(REQUESTS[0])
    assert len(mailbox.claim("w", CPU)) == 1
    assert 2 < time.monotonic() - began < 30
