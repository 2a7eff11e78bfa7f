"""When the job that this process runs in is ended by Slurm, and what is left after a warning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pike_hpc import slurm
from pike_hpc.config import env

_HAND_BACK_S = 10.0
"""Judges have 5 s to close; the rest is for a file system that takes its time."""


def drain_s(kill_wait_s: float) -> float:
    """For how long a worker may go on with what it judges where SIGKILL follows SIGTERM so late.

    It gives that back before: a worker that is killed while it judges counts against the program,
    and that a job was preempted is no fault of it.
    """
    return max(0.0, kill_wait_s - _HAND_BACK_S)


def walltime_end(
    minutes: float,
    environ: Mapping[str, str] | None = None,
    wall: Callable[[], float] = time.time,
) -> float | None:
    """Unix seconds at which the walltime is over; None outside of Slurm's jobs.

    Slurm 23.02 and later tell it, squeue does elsewhere. Where it is silent, too, the `minutes` of
    walltime that the site asks for count from now: workers and agents start with their jobs.
    """
    environ = env.environ() if environ is None else environ
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    told = environ.get("SLURM_JOB_END_TIME", "")
    if told.isdecimal():
        return float(told)
    left_s = slurm.time_left_s(job)
    return wall() + (minutes * 60 if left_s is None else left_s)
