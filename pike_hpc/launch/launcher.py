"""Start jobs through submitit: on this machine, through Slurm, or only on paper.

`LocalLauncher` is a product (SITE=local) and the stand-in for Slurm in tests. The jobs leave the
terminal's session by themselves (see `pike_hpc.cli.terminal`), so that Ctrl-C stops the follower
first and the follower stops the jobs in order.

submitit is imported by what starts a job: it brings asyncio, and most looks at a run start none.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pike_hpc.config import env
from pike_hpc.launch.exports import handed_over
from pike_hpc.launch.intents import (
    UNDER_WAY_S,
    Intent,
    drop_intent,
    new_intent,
    read_intents,
    write_intent,
)
from pike_hpc.launch.jobs import Job, JobRecord, append_jobs, read_jobs
from pike_hpc.machine import start_token
from pike_hpc.records import TryAgainLater, UsageError
from pike_hpc.slurm import DEFAULT_ARRAY_SIZE, array_of, find, max_array_size

_MAYBE_TAKEN = ("timed out", "zero bytes", "no answer")
"""In sbatch's words where it never heard whether the controller took the job."""

_TIMEOUTS = 3
"""What submitit's executors allow by themselves; a command that leaves by plan uses none."""

_FOREVER_MIN = 60 * 24 * 30
"""submitit's local executor stops a job after two minutes unless told otherwise."""


class Launcher(Protocol):
    """Starts jobs of one kind, all alike but for their arguments."""

    def submit(self, jobs: Sequence[Job]) -> tuple[JobRecord, ...]:
        """Start all; an array where the scheduler has arrays. Raises TryAgainLater."""
        ...


class LocalLauncher:
    """Processes of this machine, through submitit's local executor."""

    def __init__(self, run_dir: Path, *, gpus: Sequence[int] = ()) -> None:
        self._run_dir = run_dir
        self._gpus = tuple(gpus)

    def submit(self, jobs: Sequence[Job]) -> tuple[JobRecord, ...]:
        """Start each job as a process group of its own."""
        import submitit  # noqa: PLC0415 - see the module

        executor = submitit.LocalExecutor(self._run_dir / "slurm")
        executor.update_parameters(
            timeout_min=_FOREVER_MIN,
            tasks_per_node=1,
            stderr_to_stdout=True,
            gpus_per_node=len(self._gpus),
            visible_gpus=self._gpus,
        )
        with _deaf_to_ctrl_c():
            started = [executor.submit(_function(job)) for job in jobs]
        records = tuple(
            _record(job, one.job_id, "local", 0.0) for job, one in zip(jobs, started, strict=True)
        )
        append_jobs(self._run_dir, records)
        return records


class SlurmLauncher:
    """sbatch, through submitit; several jobs become one array, or more where the site says so."""

    def __init__(self, run_dir: Path, parameters: Mapping[str, Any]) -> None:
        self._run_dir = run_dir
        self._parameters = dict(parameters)

    def submit(self, jobs: Sequence[Job]) -> tuple[JobRecord, ...]:
        """One sbatch call for each array. Raises TryAgainLater where Slurm refuses or is absent.

        What it took before it refused is recorded: the same command submits the rest.
        """
        size = max_array_size() if len(jobs) > 1 else 1
        records: tuple[JobRecord, ...] = ()
        for array in arrays(jobs, size):
            prefix, minutes = self._parameters["job_name"], self._parameters["time"]
            intent = new_intent(array, prefix, minutes, time.time())
            write_intent(self._run_dir, intent)
            ids = self._sbatch(intent)
            records += _on_record(self._run_dir, intent, ids)
        return records

    def _sbatch(self, intent: Intent) -> list[str]:
        import submitit  # noqa: PLC0415 - see the module

        jobs = intent.jobs
        try:
            executor = submitit.SlurmExecutor(self._run_dir / "slurm", max_num_timeout=_TIMEOUTS)
            named = {**self._parameters, "job_name": intent.name}
            executor.update_parameters(**_completed(named, len(jobs)))
            theirs = handed_over(env.environ(), jobs[0].exports, jobs[0].unset)
            with env.replaced(theirs), executor.batch():
                started = [executor.submit(_function(job)) for job in jobs]
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            if not any(words in str(error).lower() for words in _MAYBE_TAKEN):
                drop_intent(self._run_dir, intent)
            raise TryAgainLater(
                f"Slurm took no job: {reason}",
                where="sbatch, through submitit",
                fix="check `sinfo` and the account, then run the same command again",
            ) from error
        except NameError as error:
            drop_intent(self._run_dir, intent)
            raise UsageError(
                str(error).splitlines()[0],
                where="the site's worker_job or agent section",
                fix="keys under `extra` are passed to sbatch as they are",
            ) from error
        return [one.job_id for one in started]


def settle(run_dir: Path, now: float) -> tuple[JobRecord, ...]:
    """Put on record what dead submitters left at Slurm; the jobs that were found.

    They wait for, or begin with, the command that submitit's job reads from a file of its own id:
    it is written where it is missing. Raises TryAgainLater where Slurm can't be asked, or where a
    call may still be under way: then nothing may be submitted.
    """
    found: tuple[JobRecord, ...] = ()
    for intent in read_intents(run_dir):
        array = find(intent.name, intent.since)
        if array is None or (not array and now - intent.since < UNDER_WAY_S):
            silent = "Slurm doesn't say" if array is None else "it is too early to say"
            raise TryAgainLater(
                f"a submit of this run was cut short, and {silent} whether its jobs are there",
                where=f"job name {intent.name}",
                fix="run the same command again when `squeue` answers, in a minute at the earliest",
            )
        if not array:
            drop_intent(run_dir, intent)
            continue
        ids = intent.ids(array)
        known = {array_of(record.job_id) for record in read_jobs(run_dir)}
        if array in known:  # it died between the record and the end of the intent
            drop_intent(run_dir, intent)
            continue
        for job, one in zip(intent.jobs, ids, strict=True):
            _hand_over(run_dir, job, one, intent.minutes)
        found += _on_record(run_dir, intent, ids)
    return found


def _hand_over(run_dir: Path, job: Job, job_id: str, minutes: float) -> None:
    import submitit  # noqa: PLC0415 - see the module

    path = submitit.core.utils.JobPaths(run_dir / "slurm", job_id).submitted_pickle
    if path.exists():
        return
    submission = submitit.core.utils.DelayedSubmission(_function(job))
    submission.set_timeout(int(minutes), _TIMEOUTS)
    beside = path.with_suffix(".new")
    submission.dump(beside)
    beside.replace(path)


def _on_record(run_dir: Path, intent: Intent, ids: Sequence[str]) -> tuple[JobRecord, ...]:
    records = tuple(
        _record(job, one, "slurm", intent.minutes)
        for job, one in zip(intent.jobs, ids, strict=True)
    )
    append_jobs(run_dir, records)
    drop_intent(run_dir, intent)
    return records


def arrays(jobs: Sequence[Job], size: int) -> tuple[Sequence[Job], ...]:
    """The jobs in arrays of at most `size` tasks."""
    return tuple(jobs[i : i + size] for i in range(0, len(jobs), size))


def dry_run(
    run_dir: Path,
    jobs: Sequence[Job],
    parameters: Mapping[str, Any] | None,
    array_size: int = DEFAULT_ARRAY_SIZE,
) -> str:
    """The sbatch scripts (with parameters) or the commands (without) that submit would start."""
    if parameters is None:
        return "\n".join(shlex.join(job.command) for job in jobs)
    names = " ".join(sorted(set(jobs[0].exports) - set(jobs[0].unset)))
    scripts = [
        sbatch_script(run_dir, shlex.join(array[0].command), len(array), parameters)
        for array in arrays(jobs, array_size)
    ]
    return "\n".join([f"# environment, and nothing else of yours: {names}", *scripts])


def sbatch_script(run_dir: Path, command: str, count: int, parameters: Mapping[str, Any]) -> str:
    """The batch script of `count` jobs alike, an array where they are several."""
    from submitit.slurm import slurm as submitit_slurm  # noqa: PLC0415 - see the module

    text: str = submitit_slurm._make_sbatch_string(  # the very function that submit uses
        command=command,
        folder=run_dir / "slurm",
        map_count=count if count > 1 else None,
        **_completed(parameters, count),
    )
    return text


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun meanwhile ignore the terminal's Ctrl-C: their follower stops them in order.

    An ignored signal is inherited; submitit's controller would else die of it with a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _completed(parameters: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The parameters, no throttle but theirs, and no wckey, which sites that check it would refuse.

    submitit would let 256 tasks run at a time, and names a wckey of its own.
    """
    return {"wckey": None, "array_parallelism": count, **parameters}


def _function(job: Job) -> Callable[[], str]:
    """What submitit runs in a job.

    Workers are told of SIGTERM, and give back what they judge. Agents have nothing to give back:
    one that is killed goes on from the journal when Slurm starts its job again, which it does not
    do with one that left in the time of grace before a preemption.
    """
    from pike_hpc.launch.relay import run_command  # noqa: PLC0415 - see the module

    return functools.partial(run_command, list(job.command), warned=job.kind == "worker")


def _record(job: Job, job_id: str, launcher: str, minutes: float) -> JobRecord:
    return JobRecord(
        job_id=str(job_id),
        kind=job.kind,
        name=job.name,
        launcher=launcher,
        host=socket.gethostname(),
        submitted_at=time.time(),
        argv=job.argv,
        minutes=minutes,
        process=start_token(int(job_id)) if launcher == "local" else "",
    )
