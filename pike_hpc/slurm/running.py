"""Whether the jobs that workers run in still run, and how a process learns which is its own.

For leases: an answer is evidence against a worker that gave no sign of life, so of a job that
can't be asked about nothing is said, and what only the accounts call running may have ended since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pike_hpc.slurm.commands import NO_SUCH_JOB, call
from pike_hpc.slurm.job_state import JobState, array_of, job_states

_TIMEOUT_S = 5.0
"""For each program: whoever asks stands still meanwhile, and must not look dead itself."""

_BEFORE_ITS_START = frozenset(
    {"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
)
"""A job in such a state was queued again: whatever ran in it has ended."""

_ENDING = "COMPLETING"
"""Its processes are being ended, which takes a node that is silent a long time."""


def own_job(environ: Mapping[str, str]) -> tuple[str | None, int]:
    """(Slurm's name of this process's job, with its step; how often the job was queued again).

    `12`, `12_4` for an array's task, `12_4.0` within a step. (None, 0) outside of Slurm's jobs.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID", "")
    job = f"{array}_{task}" if array and task.isdecimal() else environ.get("SLURM_JOB_ID", "")
    if not job:
        return None, 0
    step, restarts = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_RESTART_COUNT", "")
    name = f"{job}.{step}" if step.isdecimal() else job
    return name, int(restarts) if restarts.isdecimal() else 0


def still_run(names: Collection[str], timeout_s: float = _TIMEOUT_S) -> dict[str, bool | None]:
    """Whether each job, or step where one is named, runs. None where Slurm can't tell.

    At most two calls of squeue for all, or one and one of sacct where squeue is silent. Never
    raises.
    """
    if not names:
        return {}
    jobs = {name: name.partition(".")[0] for name in names}
    ids = ",".join(dict.fromkeys(array_of(job) for job in jobs.values()))
    queue = call("squeue", "-h", "-t", "all", "-o", "%i|%T", "-j", ids, timeout_s=timeout_s)
    if queue.returncode != 0 and NO_SUCH_JOB not in queue.stderr:
        return _by_accounts(jobs, ids, timeout_s)
    states = job_states(set(jobs.values()), queue.stdout, None)
    found = {name: _runs(states[job]) for name, job in jobs.items()}
    if any(found[name] and name != job for name, job in jobs.items()):
        said = call("squeue", "-h", "-s", "-o", "%i", "-j", ids, timeout_s=timeout_s)
        if said.returncode == 0:
            steps = set(said.stdout.split())
            for name, job in jobs.items():
                if found[name] and name != job:
                    found[name] = name in steps
    return found


def _runs(state: JobState) -> bool | None:
    if state.alive is not True:
        return state.alive
    return None if state.word == _ENDING else state.word not in _BEFORE_ITS_START


def _by_accounts(jobs: Mapping[str, str], ids: str, timeout_s: float) -> dict[str, bool | None]:
    said = call("sacct", "-n", "-P", "-X", "-o", "JobID,State", "-j", ids, timeout_s=timeout_s)
    ended = said.stdout if said.returncode == 0 else None
    states = job_states(set(jobs.values()), None, ended)
    return {name: None if states[job].alive is not False else False for name, job in jobs.items()}
