"""From a resolved configuration to the jobs it needs and the Slurm parameters they carry. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pike_hpc.config import Resolved
from pike_hpc.evaluate.device import lanes_per_gpu
from pike_hpc.launch.exports import exports, key_names
from pike_hpc.launch.jobs import Job

_GRES_GPUS = re.compile(r"\bgpu(?::[^:,]+)?:([0-9]+)")
"""The number in gres strings: gpu:4, gpu:A40:2."""

SIGNAL = "TERM@1"
"""Instead of submitit's USR2@90, at which its process kills the command. At the last second, for
workers and agents know their walltime, and leave earlier; Slurm may send it a minute before."""


def plan_jobs(
    resolved: Resolved,
    run_dir: Path,
    task_ids: Sequence[str],
    *,
    python: str,
    lib: Path,
    python_path: str = "",
    gpus: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
    """(workers, agents) of a run.

    Args:
        resolved: the configuration.
        run_dir: the run folder, an absolute path.
        task_ids: ids of the run's tasks.
        python: the interpreter of the jobs.
        lib: the folder with the run's own code.
        python_path: the submitter's PYTHONPATH, kept behind it.
        gpus: UUIDs of this machine's GPUs. One local worker drives them all, whatever
            workers.count says: it has a lane on each, and a GPU takes one process only.
        arguments: added to every command line.
    """
    # -P: the folder a job starts in, often a clone, must not shadow the run's own code.
    start = (python, "-P", "-m", "pike_hpc")
    path = f"{lib}:{python_path}" if python_path else str(lib)
    env = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    keys = tuple(sorted(key_names(resolved)))
    arrays = resolved.site.scheduler == "slurm" and resolved.site.agent.where == "array"
    count = 1 if gpus else resolved.workflow.workers.count
    workers = tuple(
        Job(
            kind="worker",
            name=f"pike-worker-{n}",
            argv=(*start, "worker", str(run_dir), *arguments),
            env=env | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            unset=keys,
            exports=exports(resolved, "worker"),
        )
        for n in range(count)
    )
    chunks = ranges(resolved, task_ids) if arrays else (",".join(task_ids),)
    agents = tuple(
        Job(
            kind="agent",
            name=f"pike-agent-{n}",
            argv=(*start, "agent", str(run_dir), "--tasks", chunk, *arguments),
            env=env,
            exports=exports(resolved, "agent"),
        )
        for n, chunk in enumerate(chunks)
    )
    return workers, agents


def ranges(resolved: Resolved, task_ids: Sequence[str]) -> tuple[str, ...]:
    """The tasks of each job of an agent array, as `--tasks` takes them."""
    size = resolved.site.agent.tasks_per_job
    return tuple(",".join(task_ids[i : i + size]) for i in range(0, len(task_ids), size))


def expected_lanes(resolved: Resolved, gpus_here: int, lanes_here: int) -> int:
    """How many requests the workers of a run can judge at the same time.

    Args:
        resolved: the configuration.
        gpus_here: this machine's GPUs of the run's device kind; counts where workers are local.
        lanes_here: on each of them.

    Of a batch node's GPUs the memory isn't known here; it is taken to be enough.
    """
    count, job = resolved.workflow.workers.count, resolved.site.worker_job
    if resolved.site.scheduler == "local":
        return gpus_here * lanes_here or count
    asked = _GRES_GPUS.search(job.gres or "")
    gpus = int(asked[1]) if asked else job.gpus
    return count * (gpus * lanes_per_gpu(job.cpus // gpus) if gpus else 1)


def _requeue(extra: Mapping[str, Any]) -> dict[str, bool]:
    """Without it a site may leave what is preempted, or loses its node, at its end.

    A person who wants that says so: `extra: {no-requeue: true}`.
    """
    return {} if extra.get("no-requeue") else {"requeue": True}


def slurm_parameters(resolved: Resolved, kind: str, name: str) -> dict[str, Any]:
    """parameters, in submitit's names, for jobs of `kind` (worker or agent) at this site."""
    site = resolved.site
    shape = site.worker_job if kind == "worker" else site.agent
    parameters: dict[str, Any] = {
        "job_name": name,
        "time": shape.walltime_minutes,
        "cpus_per_task": shape.cpus,
        "qos": shape.qos,
        "constraint": shape.constraint,
        "partition": shape.partition,
        "account": site.account_for("worker" if kind == "worker" else "agent"),
        "setup": list(site.setup) or None,
        "stderr_to_stdout": True,
        # Since Slurm 22.05 srun does not read it off the job: the step would have one CPU.
        "srun_args": [f"--cpus-per-task={shape.cpus}"],
        "additional_parameters": {"signal": SIGNAL, **_requeue(shape.extra), **shape.extra},
    }
    if kind == "agent":
        parameters["array_parallelism"] = site.agent.at_once
    elif site.worker_job.gres:
        parameters["gres"] = site.worker_job.gres
    elif site.worker_job.gpus:
        parameters["gpus_per_node"] = site.worker_job.gpus
    return {key: value for key, value in parameters.items() if value is not None}
