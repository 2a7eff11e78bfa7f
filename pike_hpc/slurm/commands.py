"""Start Slurm's programs: ask them, and tell them to cancel. One call for all jobs, with a limit.

A daemon that is down makes them wait for up to 18 s and fail; a missing configuration for a minute.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable, Mapping

from pike_hpc.config import env
from pike_hpc.machine import ask as ask_program
from pike_hpc.records import TryAgainLater
from pike_hpc.slurm.job_state import GONE, UNKNOWN, JobState, array_of, ended_runs, job_states

_TIMEOUT_S = 20.0

_CLOCKS_S = 3600.0
"""How far the clocks of two machines of a site may be apart, at the very most."""

DEFAULT_ARRAY_SIZE = 1001
"""Slurm's own, where a site sets none."""

DEFAULT_KILL_WAIT_S = 30.0
"""Slurm's own, where it can't be asked."""

_OPTIONS = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_")
"""Variables that Slurm's programs obey like options. sbatch is run without them, too."""

_WANT_ACCOUNTS = {"all", "associations", "limits", "qos", "safe", "wckeys"}
"""Values of AccountingStorageEnforce that are, or bring with them, associations."""

_LEFT = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
"""As squeue writes a time: 1-00:00:00, 2:00:00, 30:00."""

NO_SUCH_JOB = "Invalid job id specified"
"""squeue's error when asked for one job alone that it has forgotten: an answer like any other."""


def ask(jobs: Iterable[str], timeout_s: float = _TIMEOUT_S) -> dict[str, JobState]:
    """What Slurm knows of each job. Never raises: what can't be asked is unknown."""
    jobs = tuple(jobs)
    if not jobs:
        return {}
    ids = _arrays(jobs)
    wanted = ("-j", ",".join(ids))
    queue = call("squeue", "-h", "-t", "all", "-o", "%i|%T|%r", *wanted, timeout_s=timeout_s)
    squeue = queue.stdout if queue.returncode == 0 else None
    if NO_SUCH_JOB in queue.stderr:
        squeue = ""
    found = job_states(jobs, squeue, None)
    if not {GONE, UNKNOWN} & {state.word for state in found.values()}:
        return found
    accounts = call("sacct", "-n", "-P", "-X", "-o", "JobID,State", *wanted, timeout_s=timeout_s)
    return job_states(jobs, squeue, accounts.stdout if accounts.returncode == 0 else None)


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, arrays whole: all their tasks must be the caller's. Raises TryAgainLater."""
    ids = _arrays(jobs)
    done = call("scancel", *ids)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TryAgainLater(
            f"Slurm did not cancel the jobs: {reason}",
            where="scancel",
            fix=f"run the same command again, or `scancel {' '.join(ids)}`",
        )


def max_array_size() -> int:
    """How many tasks an array may have here."""
    said = _setting("MaxArraySize")
    return max(int(said), 1) if said.isdecimal() else DEFAULT_ARRAY_SIZE


def kill_wait_s() -> float:
    """Seconds between the SIGTERM that ends a job here and the SIGKILL after it."""
    said = _setting("KillWait").removesuffix(" sec")
    return float(said) if said.isdecimal() else DEFAULT_KILL_WAIT_S


def accounts_enforced() -> bool:
    """Whether a job needs an account; not so where Slurm can't be asked."""
    return bool(_WANT_ACCOUNTS & _enforced())


def limits_enforced() -> bool:
    """Whether limits of accounts and QOS bind; not so where Slurm can't be asked."""
    return bool({"limits", "safe", "all"} & _enforced())


def _enforced() -> set[str]:
    return set(_setting("AccountingStorageEnforce").lower().split(","))


def _setting(name: str) -> str:
    """Slurm's setting of that name, "" where it tells none."""
    said = call("scontrol", "show", "config").stdout
    match = re.search(rf"^{name}[ \t]*=[ \t]*(.*?)[ \t]*$", said, re.MULTILINE)
    return match[1] if match else ""


def find(name: str, since: float) -> str | None:
    """The id of the job or array of the caller's with that name, "" where there is none.

    None where Slurm can't be asked. Names are the caller's to keep apart; `since` is the Unix time
    before which no such job was submitted.
    """
    queue = call("squeue", "-h", "--me", "-t", "all", "-o", "%i", f"--name={name}")
    if queue.returncode != 0:
        return None
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - _CLOCKS_S))
    said = queue.stdout.split()
    if not said:  # squeue forgets what ended minutes ago
        accounts = call("sacct", "-n", "-P", "-X", "-o", "JobID", "-S", begin, f"--name={name}")
        said = accounts.stdout.split() if accounts.returncode == 0 else []
    return array_of(said[0]) if said else ""


def used_s(jobs: Iterable[str], timeout_s: float = _TIMEOUT_S) -> dict[str, float] | None:
    """Seconds that each job has run, all its runs; None where nobody could say.

    Jobs that the accounts do not know, or don't know to have ended, are left out.
    """
    jobs = tuple(jobs)
    if not jobs:
        return {}
    wanted = ("-D", "-o", "JobID,State,ElapsedRaw", "-j", ",".join(_arrays(jobs)))
    done = call("sacct", "-n", "-P", "-X", *wanted, timeout_s=timeout_s)
    return ended_runs(jobs, done.stdout) if done.returncode == 0 else None


def time_left_s(job: str) -> float | None:
    """Until Slurm ends a running job for its walltime; None where it doesn't say."""
    match = _LEFT.fullmatch(call("squeue", "-h", "-j", job, "-o", "%L").stdout.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def call(
    *command: str, timeout_s: float = _TIMEOUT_S, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A program of Slurm's at its end; 127 and the reason where it never started or took too long.

    `environ` is all that it sees, by default what this process has but for the variables that a
    person set for these programs: SQUEUE_PARTITION or SLURM_CLUSTERS would hide jobs, and lists are
    wanted whole.
    """
    if environ is None:
        given = env.environ().items()
        kept = {k: v for k, v in given if k == "SLURM_CONF" or not k.startswith(_OPTIONS)}
        environ = kept | {"SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
    said = ask_program(command, timeout_s, environ=environ)
    if said.status is None:
        return subprocess.CompletedProcess(command, 127, "", said.why_not)
    return subprocess.CompletedProcess(command, said.status, said.stdout, said.stderr)


def _arrays(jobs: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(array_of(job) for job in jobs))
