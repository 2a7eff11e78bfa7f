"""When the job that this process runs in is ended by Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pike_hpc import slurm
from pike_hpc.config import env


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
