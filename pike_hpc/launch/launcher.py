"""Start jobs through submitit: on this machine, through Slurm, or only on paper.

`LocalLauncher` is a product (SITE=local) and the stand-in for Slurm in tests. The jobs leave the
terminal's session by themselves (see `pike_hpc.cli.jobs`), so that Ctrl-C stops the follower
first and the follower stops the jobs in order.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import submitit
from submitit.slurm import slurm as submitit_slurm

from pike_hpc.config import env
from pike_hpc.launch.exports import handed_over
from pike_hpc.launch.jobs import Job, JobRecord, append_jobs
from pike_hpc.records import TryAgainLater, UsageError
from pike_hpc.slurm import DEFAULT_ARRAY_SIZE, max_array_size

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
        executor = submitit.LocalExecutor(self._run_dir / "slurm")
        executor.update_parameters(
            timeout_min=_FOREVER_MIN,
            tasks_per_node=1,
            stderr_to_stdout=True,
            gpus_per_node=len(self._gpus),
            visible_gpus=self._gpus,
        )
        with _deaf_to_ctrl_c():
            started = [executor.submit(_command(job)) for job in jobs]
        records = tuple(
            _record(job, one.job_id, "local") for job, one in zip(jobs, started, strict=True)
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
            started = tuple(_record(job, i, "slurm") for job, i in self._sbatch(array))
            append_jobs(self._run_dir, started)
            records += started
        return records

    def _sbatch(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        try:
            executor = submitit.SlurmExecutor(self._run_dir / "slurm")
            executor.update_parameters(**_all_at_once(self._parameters, len(jobs)))
            theirs = handed_over(env.environ(), jobs[0].exports, jobs[0].unset)
            with env.replaced(theirs), executor.batch():
                started = [executor.submit(_command(job)) for job in jobs]
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise TryAgainLater(
                f"Slurm took no job: {reason}",
                where="sbatch, through submitit",
                fix="check `sinfo` and the account, then run the same command again",
            ) from error
        except NameError as error:
            raise UsageError(
                str(error).splitlines()[0],
                where="the site's worker_job or agent section",
                fix="keys under `extra` are passed to sbatch as they are",
            ) from error
        return [(job, one.job_id) for job, one in zip(jobs, started, strict=True)]


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
    text: str = submitit_slurm._make_sbatch_string(  # the very function that submit uses
        command=command,
        folder=run_dir / "slurm",
        map_count=count if count > 1 else None,
        **_all_at_once(parameters, count),
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


def _all_at_once(parameters: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The parameters, and no throttle: submitit would let 256 tasks run at a time."""
    return {**parameters, "array_parallelism": count}


def _command(job: Job) -> Callable[[], str]:
    command: Callable[[], str] = submitit.helpers.CommandFunction(list(job.command), verbose=False)
    return command


def _record(job: Job, job_id: str, launcher: str) -> JobRecord:
    return JobRecord(
        job_id=str(job_id),
        kind=job.kind,
        name=job.name,
        launcher=launcher,
        host=socket.gethostname(),
        submitted_at=time.time(),
        argv=job.argv,
    )
