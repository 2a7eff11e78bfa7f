"""Ask Slurm's programs and tell them to cancel. One call for all jobs, each with a time limit.

A daemon that is down makes them wait for up to 18 s and fail; a missing configuration for a minute.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

from pike_hpc.config import env
from pike_hpc.records import TryAgainLater
from pike_hpc.slurm.job_state import GONE, UNKNOWN, JobState, array_of, job_states

_TIMEOUT_S = 20.0

DEFAULT_ARRAY_SIZE = 1001
"""Slurm's own, where a site sets none."""

_OPTIONS = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_")
"""Variables that Slurm's programs obey like options. sbatch is run without them, too."""

_ARRAY_SIZE = re.compile(r"^MaxArraySize\s*=\s*([0-9]+)\s*$", re.MULTILINE)

_NO_SUCH_JOB = "Invalid job id specified"
"""squeue's error when asked for one job alone that it has forgotten: an answer like any other."""


def ask(jobs: Iterable[str], timeout_s: float = _TIMEOUT_S) -> dict[str, JobState]:
    """What Slurm knows of each job. Never raises: what can't be asked is unknown."""
    jobs = tuple(jobs)
    if not jobs:
        return {}
    ids = _arrays(jobs)
    queue = _run(timeout_s, "squeue", "-h", "-t", "all", "-o", "%i|%T|%r", "-j", ",".join(ids))
    squeue = queue.stdout if queue.returncode == 0 else None
    if _NO_SUCH_JOB in queue.stderr:
        squeue = ""
    found = job_states(jobs, squeue, None)
    if not {GONE, UNKNOWN} & {state.word for state in found.values()}:
        return found
    accounts = _run(timeout_s, "sacct", "-n", "-P", "-X", "-o", "JobID,State", "-j", ",".join(ids))
    return job_states(jobs, squeue, accounts.stdout if accounts.returncode == 0 else None)


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, arrays whole: all their tasks must be the caller's. Raises TryAgainLater."""
    ids = _arrays(jobs)
    done = _run(_TIMEOUT_S, "scancel", *ids)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TryAgainLater(
            f"Slurm did not cancel the jobs: {reason}",
            where="scancel",
            fix=f"run the same command again, or `scancel {' '.join(ids)}`",
        )


def max_array_size() -> int:
    """How many tasks an array may have here."""
    match = _ARRAY_SIZE.search(_run(_TIMEOUT_S, "scontrol", "show", "config").stdout)
    return max(int(match[1]), 1) if match else DEFAULT_ARRAY_SIZE


def _arrays(jobs: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(array_of(job) for job in jobs))


def _run(timeout_s: float, *command: str) -> subprocess.CompletedProcess[str]:
    """The program at its end; 127 and the reason where it never started or took too long."""
    # A person's own SQUEUE_PARTITION or SLURM_CLUSTERS would hide jobs; lists are wanted whole.
    given = env.environ().items()
    environ = {k: v for k, v in given if k == "SLURM_CONF" or not k.startswith(_OPTIONS)}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environ | {"SLURM_BITSTR_LEN": "0", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        said = f"no answer within {timeout_s:g} s"
    except OSError as error:
        said = f"{command[0]}: {error.strerror or error}"
    return subprocess.CompletedProcess(command, 127, "", said)
