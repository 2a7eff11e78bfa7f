"""Ask Slurm what it would do with a run's jobs, before anything is submitted.

`sbatch --test-only` gets the very options of the worker and of the agent job, in the environment
that the jobs will have, and `true` for a command. No job comes of it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pike_hpc.config import Resolved, env
from pike_hpc.launch.account import account_line
from pike_hpc.launch.exports import handed_over
from pike_hpc.launch.jobs import Job
from pike_hpc.launch.launcher import sbatch_script
from pike_hpc.launch.plan import slurm_parameters
from pike_hpc.launch.refusal import Refusal, error_of, later, passes
from pike_hpc.records import TryAgainLater, without_escapes
from pike_hpc.slurm import call, limits_enforced, max_array_size

_PATIENCE_S = 60
"""sbatch itself gives up on a controller that is down after some 20 s."""

_START = re.compile(r"to start at (\S+)")
_PARTITION = re.compile(r"in partition (\S+)")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):\d+")
"""As sinfo writes a time: 1-00:00:00, 30:00."""

_SPEAKER = re.compile(r"^(sbatch: )?(error: |fatal: )?(allocation failure: )?")


def preflight(
    resolved: Resolved, run_dir: Path, plan: tuple[Sequence[Job], Sequence[Job]]
) -> tuple[str, ...]:
    """The account and the expected start of (workers, agents), in lines for a person.

    Either may be empty, where a run has its jobs already.

    Raises UsageError where Slurm wants an account and there is none, else for what Slurm refuses,
    all of it in one message; TryAgainLater where Slurm cannot answer.
    """
    wanted = [jobs for jobs in plan if jobs]
    if not wanted:
        return ()
    if not sbatch_is_here():
        raise TryAgainLater(
            "no sbatch on PATH: Slurm cannot be asked from here",
            where=f"site {resolved.site.name}",
            fix="run the same command on a login node of the site",
        )
    account = account_line(resolved)
    starts, refusals = [], []
    for jobs in wanted:
        kind = jobs[0].kind
        accepted, said = _tried(resolved, run_dir, jobs)
        if accepted:
            starts.append(f"{kind}s {said}")
        elif passes(said):
            raise later(said)
        else:
            refusals.append(Refusal(kind=kind, said=said))
    if refusals:
        raise error_of(resolved, refusals)
    return (account, f"expected start, by Slurm's estimate: {', '.join(starts)}")


def sbatch_is_here() -> bool:
    """Whether Slurm could be asked at all."""
    return shutil.which("sbatch") is not None


def _tried(resolved: Resolved, run_dir: Path, jobs: Sequence[Job]) -> tuple[bool, str]:
    """(whether sbatch would take these jobs, when they would start or why not)."""
    kind = jobs[0].kind
    parameters = slurm_parameters(resolved, kind, f"pike-{kind}")
    theirs = handed_over(env.environ(), jobs[0].exports, jobs[0].unset)
    with tempfile.TemporaryDirectory(prefix="pike-preflight-") as folder:
        script = Path(folder, f"{kind}.sh")
        count = min(len(jobs), max_array_size()) if len(jobs) > 1 else 1  # as in one array of them
        script.write_text(sbatch_script(run_dir, "true", count, parameters), "utf-8")
        done = call("sbatch", "--test-only", str(script), timeout_s=_PATIENCE_S, environ=theirs)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        partition = _PARTITION.search(said)
        too_long = _never_starts(resolved, kind, partition[1]) if partition else None
        if too_long:
            return False, too_long
        start = _START.search(said)
        return True, start[1] if start else "at a time Slurm does not tell"
    return False, sentence(said) or f"sbatch ended with status {done.returncode}"


def _never_starts(resolved: Resolved, kind: str, partition: str) -> str | None:
    """Why a job that Slurm takes would wait for ever; None where it would not.

    Unless a site sets EnforcePartLimits, Slurm takes jobs that are longer than their partition
    allows, a test included, and leaves them pending; the same of a QOS without DenyOnLimit.
    """
    shape = resolved.site.worker_job if kind == "worker" else resolved.site.agent
    flags, qos_limit = "", ""
    if shape.qos:
        asked = ("sacctmgr", "-nP", "show", "qos", shape.qos, "format=flags,maxwall")
        flags, _, qos_limit = (_asked(*asked) or "").partition("|")
    if _is_over(shape.walltime_minutes, qos_limit) and _qos_decides(partition):
        return f"the time limit of QOS {shape.qos} is {qos_limit}; it would wait for ever"
    limit = _asked("sinfo", "-h", "-o", "%l", "-p", partition) or ""
    if _is_over(shape.walltime_minutes, limit) and "PartitionTimeLimit" not in flags:
        return f"the time limit of partition {partition} is {limit}; it would wait for ever"
    return None


def _qos_decides(partition: str) -> bool:
    """Whether a job's QOS limits its time: a partition's own would come first."""
    said = _asked("scontrol", "-o", "show", "partition", partition) or ""
    return " QoS=N/A " in f" {said} " and limits_enforced()


def _is_over(minutes: float, limit: str) -> bool:
    """Whether so many are more than that; one that is infinite, or not told, is no limit."""
    found = _LIMIT.fullmatch(limit)
    if found is None:
        return False
    days, hours, most = (int(part or 0) for part in found.groups())
    return minutes > (days * 24 + hours) * 60 + most


def sentence(said: str) -> str:
    """Slurm's own words out of what sbatch printed: each line's, without who says it."""
    lines = [_SPEAKER.sub("", without_escapes(line).strip()) for line in said.splitlines()]
    return "; ".join(line for line in dict.fromkeys(lines) if line and not line.startswith("Try "))


def _asked(*command: str) -> str | None:
    """The first line that a program prints; None where it fails or prints nothing."""
    done = call(*command, timeout_s=_PATIENCE_S)
    return done.stdout.strip().partition("\n")[0] or None if done.returncode == 0 else None
