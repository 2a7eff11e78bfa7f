"""How long a worker waits for what. All in seconds; clocks are the worker's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pike_hpc.records import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The patience of one worker."""

    worker_id: str
    """Unique among the run's workers, such as host-job-number."""
    max_idle_s: float | None = 600.0
    """Leaves after so long without a request; None: never."""
    heartbeat_s: float = 5.0
    stale_s: float = 60.0
    """Others' counters that stand still for so long belong to dead workers."""
    drain_s: float = 30.0
    """What an evaluation in flight may still take after a signal, before it is killed."""
    janitor_s: float = 15.0
    poll_min_s: float = 0.01
    poll_max_s: float = 0.03
    """Of an empty mailbox on a local disk, where a look costs microseconds."""
    watched_s: float = 1.0
    """The longest pause instead where the mailbox rings by itself."""
    job: str | None = None
    """Slurm's name of the job that it runs in: others ask about it where no beat comes."""
    job_restarts: int = 0
    walltime_end: float | None = None
    """Unix seconds at which the job is killed."""
    walltime_margin_s: float = 10.0
    """Left over before that, to hand back what is in flight."""
    expected_s: float = 60.0
    """Taken for the length of an evaluation until one was seen."""

    def on_shared_disk(self) -> WorkerOptions:
        """The same with the polls of a shared file system, as few as its caches make useful.

        An NFS client shows for seconds what it listed last. At 5.1 s there are 0.196 looks a
        second, and of what becomes visible 95 % is seen within 4.9 s.
        """
        return dataclasses.replace(self, poll_min_s=1.0, poll_max_s=5.1)

    def __post_init__(self) -> None:
        if self.stale_s < 3 * self.heartbeat_s:
            raise UsageError(
                f"stale_s = {self.stale_s:g} would take living workers for dead",
                where="worker options",
                valid=f"at least 3 heartbeats: {3 * self.heartbeat_s:g} s",
            )
