"""What squeue, sacct and scontrol know, as typed answers; a daemon that is down is no error."""

from pike_hpc.slurm.commands import (
    DEFAULT_ARRAY_SIZE,
    accounts_enforced,
    ask,
    call,
    cancel,
    find,
    kill_wait_s,
    limits_enforced,
    max_array_size,
    time_left_s,
    used_s,
)
from pike_hpc.slurm.job_state import GONE, UNKNOWN, JobState, array_of, job_states
from pike_hpc.slurm.running import own_job, still_run

__all__ = [
    "DEFAULT_ARRAY_SIZE",
    "GONE",
    "UNKNOWN",
    "JobState",
    "accounts_enforced",
    "array_of",
    "ask",
    "call",
    "cancel",
    "find",
    "job_states",
    "kill_wait_s",
    "limits_enforced",
    "max_array_size",
    "own_job",
    "still_run",
    "time_left_s",
    "used_s",
]
