"""Mailboxes of every kind, on a clock that passes when told, and what goes through them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from pike_hpc.mailbox import Claim, FileMailbox, Mailbox, MemoryMailbox, WorkerBeat
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

CPU = frozenset({"cpu"})
KINDS = ["memory", "link", "renameat2", "directory", "claims-lock", "sharded"]


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Slurm:
    """What it says of jobs, and what it was asked."""

    def __init__(self) -> None:
        self.runs: dict[str, bool | None] = {}
        self.asked: list[set[str]] = []

    def __call__(self, jobs: Collection[str]) -> dict[str, bool | None]:
        self.asked.append(set(jobs))
        return {job: self.runs.get(job) for job in jobs}


def opener(kind: str, folder: Path, clock: Clock, slurm: Slurm) -> Callable[[], Mailbox]:
    """Opens a mailbox; again and again it is the same one, as other processes would see it."""
    if kind == "memory":
        only = MemoryMailbox(clock=clock, jobs=slurm)
        return lambda: only
    root = folder / 'a folder\'s "name"\nof two lines'
    lock = "claims" if kind == "claims-lock" else "flock"
    commit = "link" if kind in ("claims-lock", "sharded") else kind
    shards = 5 if kind == "sharded" else 1
    return lambda: FileMailbox(
        root, clock=clock, commit=commit, lock=lock, jobs=slurm, shards=shards
    )


def request(number: int, device_kind: str = "cpu") -> EvalRequest:
    task = Task(suite="s", id="1", name="one", source="class Model: pass  # \ud800 é")
    return EvalRequest(
        task=task, candidate_source=f"# {number}", device_kind=device_kind, image_digest="i"
    )


def result(of: EvalRequest, message: str = "") -> EvalResult:
    return EvalResult(key=of.key, status=EvalStatus.TIMEOUT, message=message)


def beat(worker_id: str, counter: int = 1, job: str | None = None, restarts: int = 0) -> WorkerBeat:
    return WorkerBeat(
        worker_id=worker_id,
        host="h",
        pid=1,
        start_token=worker_id,
        counter=counter,
        job=job,
        job_restarts=restarts,
        state="idle",
        device_kind="cpu",
        started_at=0.0,
    )


def take(mailbox: Mailbox, worker_id: str = "w") -> Claim:
    (claim,) = mailbox.claim(worker_id, CPU)
    return claim


def lose(agent: Mailbox, clock: Clock) -> None:
    """All claims are lost: no worker here beats, and time passes."""
    agent.requeue_lost(stale_s=60, is_alive=lambda b: None)
    clock.now_s += 61
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: None) == 1
