"""The Slurm jobs of a run: what is known of them, which are missing, and their end."""

from __future__ import annotations

import sys
import time

from pike_hpc import slurm
from pike_hpc.cli.run import Run, wait_for
from pike_hpc.launch import Job, JobRecord, Missing, drop_grant, missing, read_jobs, settle
from pike_hpc.records import TryAgainLater

Known = tuple[tuple[JobRecord, slurm.JobState], ...]
"""Recorded jobs, oldest first, and what Slurm knows of each."""

_END_S = 40.0
"""Slurm gives a job 30 s (KillWait) to leave before it kills it."""

_LOOK_S = 2.0
"""Between two questions to Slurm: its controller serves the whole site."""


def look(run: Run) -> Known:
    """What Slurm knows of the run's recorded jobs; one question for all."""
    records = [record for record in read_jobs(run.dir) if record.launcher == "slurm"]
    states = slurm.ask(record.job_id for record in records)
    return tuple((record, states[record.job_id]) for record in records)


def take_over(run: Run) -> None:
    """Put on record what a submitter that died has left at Slurm, and say so."""
    for record in settle(run.dir, time.time()):
        _say(f"{record.kind} job {record.job_id} was submitted by one that died: it is taken over")


def to_submit(run: Run, plan: tuple[tuple[Job, ...], tuple[Job, ...]]) -> Missing:
    """What a run lacks of its plan; one line for each job that it has."""
    views = run.views()

    def finished(agent: Job) -> bool:
        ids = agent.argv[agent.argv.index("--tasks") + 1]
        return all(views[task.key].finished is not None for task in run.chosen(ids))

    found = missing(plan, look(run), finished)
    for record, state in found.kept:
        said = "may still live, Slurm doesn't say" if state.alive is None else f"is there: {state}"
        _say(f"{record.kind} job {record.job_id} {said}")
    for agent in found.idle:
        _say(f"{agent.name} is not started: its tasks are finished")
    if not (found.workers or found.agents):
        _say("nothing is started")
    return found


def refuse_to_guess(found: Missing) -> None:
    """Raise TryAgainLater where jobs were left alone only because Slurm couldn't be asked."""
    unknown = [record.job_id for record, state in found.kept if state.alive is None]
    if unknown:
        raise TryAgainLater(
            f"neither squeue nor sacct says whether {len(unknown)} jobs of this run still live; "
            "they are not started again",
            where=", ".join(unknown[:10]) + (", …" if len(unknown) > 10 else ""),
            fix="run the same command again when `squeue` answers",
        )


def cancel(run: Run) -> int:
    """End the run's jobs and wait until they are gone; how many there were.

    Raises TryAgainLater where Slurm takes no order, or where a submit was cut short a moment ago.
    """
    drop_grant(run.dir)  # first: else an agent replaces the workers that go
    take_over(run)
    living = _living(run)
    if not living:
        return 0
    try:
        # Recorded tasks of an array are all of it, so it may end whole.
        slurm.cancel(living)
    except TryAgainLater:
        if _living(run):
            raise  # else they ended by themselves meanwhile
    if not wait_for(lambda: not _living(run), _END_S, _LOOK_S):
        _say(f"some jobs are still ending: pike-hpc status {run.dir}")
    return len(living)


def _living(run: Run) -> tuple[str, ...]:
    return tuple(record.job_id for record, state in look(run) if state.alive is not False)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
