"""Which jobs of a plan are still to be submitted, given those that were. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pike_hpc.launch.jobs import Job, JobRecord
from pike_hpc.slurm import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a second submit starts, and what it leaves alone."""

    workers: tuple[Job, ...]
    agents: tuple[Job, ...]
    kept: tuple[tuple[JobRecord, JobState], ...]
    """Jobs that live, or of which nobody could say that they have ended."""
    idle: tuple[Job, ...]
    """Agents without a job whose tasks are all finished."""


def missing(
    plan: tuple[Sequence[Job], Sequence[Job]],
    recorded: Sequence[tuple[JobRecord, JobState]],
    finished: Callable[[Job], bool],
) -> Missing:
    """The jobs that a run lacks.

    Args:
        plan: (workers, agents), the same for a run each time; a job is known by its name. No agent
            where agents are no jobs: then all workers are wanted.
        recorded: the jobs started so far and what Slurm knows of each.
        finished: whether an agent has nothing left to do.
    """
    workers, agents = plan
    kept = tuple((record, state) for record, state in recorded if state.alive is not False)
    names = {record.name for record, _ in kept}
    away = [agent for agent in agents if agent.name not in names]
    wanted = 0 if agents and all(finished(agent) for agent in agents) else len(workers)
    there = sum(record.kind == "worker" for record, _ in kept)
    return Missing(
        workers=tuple(w for w in workers if w.name not in names)[: max(wanted - there, 0)],
        agents=tuple(agent for agent in away if not finished(agent)),
        kept=kept,
        idle=tuple(agent for agent in away if finished(agent)),
    )
