"""Jobs of a run on this machine between their start and their first sign of life.

A job whose process lives is not gone, however long it takes to show itself: it may import from a
cold file system, or hang in the trial of its sandbox. A worker that has found its run says what it
is at (see `pike_hpc.cli.arrival`); of what comes before only its process tells.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from pike_hpc.cli.run import Run
from pike_hpc.journal import Holder, controller_of, task_slug
from pike_hpc.launch import JobRecord, read_jobs
from pike_hpc.machine import began_at, below, is_that
from pike_hpc.mailbox import STARTING, WorkerBeat, alive_here
from pike_hpc.records import PikeError

BEGIN_S = 600.0
"""How long a job may take to begin. Trials of sandboxes, an image, a driver and a GPU that another
worker hands back give up after 6 minutes together."""

_LOOK_S = 5.0
"""Between two looks: they read journals and signs of life."""

_UNTOLD_S = 20.0
"""How long a record counts that does not tell its process's start, as older versions wrote them;
and how far from its record such a process may seem to have begun."""


class Late:
    """Tells of a job that lives and does not begin: it ends a run that has none other of its kind.

    Args:
        run: whose jobs.
        clock: monotonic seconds.
        say: told once of one that others do the work of.
    """

    def __init__(self, run: Run, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._run, self._clock, self._say = run, clock, say
        self._since: dict[str, float] = {}
        """When each that has not begun was first seen so; those that were at work begin anew."""
        self._told: set[str] = set()
        self._next_at = clock()

    def look(self) -> PikeError | None:
        """Why the run ends: a job has not begun for BEGIN_S, and no other of its kind works."""
        now = self._clock()
        if now < self._next_at:
            return None
        self._next_at = now + _LOOK_S
        workers = beats(self._run)
        at_work = {
            "worker": any(beat.state != STARTING for beat in workers),
            "agent": bool(agents_of(self._run)),
        }
        waiting = {job.job_id: (job.kind, self._unshown(job)) for job in all_unshown(self._run)}
        for beat in workers:
            if beat.state == STARTING:
                waiting[beat.worker_id] = ("worker", self._starting(beat))
        self._since = {name: self._since.get(name, now) for name in waiting}
        for name in (name for name, since in self._since.items() if now - since >= BEGIN_S):
            kind, error = waiting[name]
            if not at_work[kind]:
                return error
            if name not in self._told:
                self._told.add(name)
                self._say(f"{error}\n  (the run goes on: another {kind} is at work)")
        return None

    def _starting(self, beat: WorkerBeat) -> PikeError:
        return PikeError(
            f"a worker lives and has not begun to judge for {BEGIN_S / 60:.0f} minutes: "
            f"it hangs in the {beat.phase}",
            where=str(self._run.dir / "logs" / f"{beat.worker_id}.log"),
            fix=_fix(self._run),
        )

    def _unshown(self, job: JobRecord) -> PikeError:
        return PikeError(
            f"the process of the run's {job.kind} lives and has not shown itself for "
            f"{BEGIN_S / 60:.0f} minutes: it hangs before it has found its run",
            where=str(self._run.dir / "slurm" / f"{job.job_id}_0_log.out"),
            fix=_fix(self._run),
        )


def unshown(run: Run, kind: str) -> tuple[JobRecord, ...]:
    """Jobs of that kind whose processes live here and can't be found by any sign of life yet."""
    jobs = tuple(job for job in read_jobs(run.dir) if job.kind == kind and _lives(job))
    shown = worker_pids(run) if kind == "worker" else agent_pids(run)
    if len(jobs) <= len(shown):
        return ()
    return tuple(job for job in jobs if shown.isdisjoint(pids_below(job)))


def all_unshown(run: Run) -> tuple[JobRecord, ...]:
    """Of both kinds; no agent of a finished run: it let go of its tasks to build the archive."""
    return unshown(run, "worker") + (() if run.finished() else unshown(run, "agent"))


def pids_below(job: JobRecord) -> frozenset[int]:
    """The job's process and all that it started and that lives, some in sessions of their own."""
    pid = int(job.job_id)
    return frozenset({pid}) | below(pid)


def beats(run: Run) -> tuple[WorkerBeat, ...]:
    """Of the workers that live on this machine."""
    return tuple(seen.beat for seen in run.mailbox.workers() if alive_here(seen.beat))


def worker_pids(run: Run) -> frozenset[int]:
    """Workers that have shown themselves and live on this machine."""
    return frozenset(beat.pid for beat in beats(run))


def agent_pids(run: Run) -> frozenset[int]:
    """Agents at work on this machine."""
    return frozenset(h.pid for h in agents_of(run) if h.lives_here())


def agents_of(run: Run) -> tuple[Holder, ...]:
    """The controllers at work, one entry a task."""
    holders = (controller_of(run.dir, task_slug(task.key)) for task in run.tasks)
    return tuple(h for h in holders if h is not None)


def _lives(job: JobRecord) -> bool:
    """Whether the process that was recorded is there still, and no other with its pid.

    Pids are used again, and one of a container names another process outside it.
    """
    if job.launcher != "local" or job.host != socket.gethostname():
        return False
    pid = int(job.job_id)
    if job.process:
        return is_that(pid, job.process) is True
    began = began_at(pid) if abs(time.time() - job.submitted_at) <= _UNTOLD_S else None
    return began is not None and abs(began - job.submitted_at) <= _UNTOLD_S


def _fix(run: Run) -> str:
    site = run.resolved.site.name
    return (
        f"`pike-hpc doctor --site {site}` tries the same and says what is wrong; then go on: "
        + (f"pike-hpc resume {run.dir}")
    )
