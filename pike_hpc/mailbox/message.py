"""What goes through a mailbox besides requests and results: claims, counts, heartbeats.

Knows nothing of files. Every field is one that a second process may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pike_hpc.records import EvalRequest

MAX_ATTEMPTS = 3
"""Deaths while judging after which a request becomes a dead letter."""

STARTING = "starting"
"""State of a worker that has claimed nothing yet and tries what it judges with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One worker's hold on one request. A lease: a janitor may end it, a commit still stands."""

    request: EvalRequest
    attempt: int
    """1 for the first judging; grows only when a worker died while judging."""
    token: str
    """The mailbox's own name for this hold; unique for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How many requests lie where; a snapshot that is never exactly simultaneous."""

    new: int
    claimed: int
    done: int
    """Results, dead letters included, that no agent has discarded yet."""
    dead: int
    """Dead requests and files moved aside; kept for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
    """A worker's sign of life. Only its `counter` proves anything to another host."""

    worker_id: str
    host: str
    pid: int
    start_token: str
    """Start time of the process, from `start_token()`: a pid alone is reused."""
    counter: int
    """Grows with every beat."""
    job: str | None = None
    """Slurm's name of the job that it runs in, array task and step included: `12_4.0`."""
    job_restarts: int = 0
    """How often that job had been queued again."""
    state: str
    """STARTING, idle, judging or draining."""
    request_id: str | None = None
    phase: str = ""
    device_kind: str
    judged: int = 0
    started_at: float
    """Unix seconds by the worker's clock; shown to people, never compared."""
    walltime_end: float | None = None
    """Unix seconds by the worker's clock at which its job ends."""


class SeenWorker(NamedTuple):
    """A beat and its age in seconds, both ends read from one clock (the file server's)."""

    beat: WorkerBeat
    age_s: float
