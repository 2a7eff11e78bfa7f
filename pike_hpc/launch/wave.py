"""How many workers a run lacks now, and for how long they may be asked for.

A person who submits grants node-hours; while they last and work waits, agents start workers again
in place of those that left. The arithmetic is pure; the grant is a file, RUN/slurm/grant.json.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.config import Resolved
from pike_hpc.launch.jobs import JobRecord
from pike_hpc.records import CodecError, from_json, to_json
from pike_hpc.slurm import JobState

_SHORTEST_MINUTES = 10
"""A worker that may stay for less would hardly judge anything."""

_DEATHS = 5
"""Workers that failed without a verdict in between: the next would, too."""

_NO_FAILURE = frozenset({"COMPLETED", "CANCELLED", "PREEMPTED", "NODE_FAIL", "GONE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a person agreed to by submitting, and how workers are started."""

    since: float
    """Unix time."""
    node_hours: float
    """Of worker jobs, those that were there already included."""
    kept: tuple[str, ...]
    """Ids of the worker jobs that lived then."""
    python: str
    python_path: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopUp:
    """What to start."""

    workers: int
    minutes: int = 0
    """The walltime of each."""
    why: str = ""
    """What keeps a run that needs workers from having them."""


def granted_hours(resolved: Resolved) -> float:
    """The node-hours that one submit grants."""
    given = resolved.workflow.workers.max_node_hours
    if given is not None:
        return given
    return resolved.workflow.workers.count * resolved.site.worker_job.walltime_minutes / 60


def top_up(
    grant: Grant,
    known: Sequence[tuple[JobRecord, JobState]],
    used_s: Mapping[str, float],
    *,
    open_requests: int,
    lanes: int,
    beating: int,
    most: int,
    walltime_minutes: int,
    judged_at: Callable[[], float],
) -> TopUp:
    """The workers to start now.

    Args:
        grant: what may be used.
        known: worker jobs and what Slurm knows of each.
        used_s: seconds that ended jobs ran; one that is missing counts as its whole walltime.
        open_requests: requests that have no verdict, claimed ones included: whoever claimed them
            may be dead, and only a worker gives them back.
        lanes: how many of them one worker judges at a time.
        beating: workers that show signs of life, those of no job of ours included.
        most: `workers.count`.
        walltime_minutes: what a worker asks for where enough is left.
        judged_at: Unix time of the run's last verdict; asked only where workers are needed.
    """
    mine = [(r, s) for r, s in known if r.submitted_at >= grant.since or r.job_id in grant.kept]
    there = max(sum(state.alive is not False for _, state in known), beating)
    cancelled = sum(state.word == "CANCELLED" for _, state in mine)  # somebody wanted it gone
    needed = min(most - cancelled, math.ceil(open_requests / max(lanes, 1)))
    if needed <= there:
        return TopUp(workers=0)
    failed = [
        r
        for r, s in mine
        if s.alive is False and s.word not in _NO_FAILURE and r.submitted_at > judged_at()
    ]
    if len(failed) >= _DEATHS and not there:
        why = f"{len(failed)} workers failed without a verdict; the last: job {failed[-1].job_id}"
        return TopUp(workers=0, why=why)
    return share(grant.node_hours - used_hours(mine, used_s), needed - there, walltime_minutes)


def used_hours(mine: Sequence[tuple[JobRecord, JobState]], used_s: Mapping[str, float]) -> float:
    """Node-hours that jobs have used, or may still use."""
    return sum(
        used_s[record.job_id] / 3600
        if state.alive is False and record.job_id in used_s
        else record.minutes / 60
        for record, state in mine
    )


def share(hours: float, workers: int, walltime_minutes: int) -> TopUp:
    """So many workers, or fewer and shorter ones where the hours don't suffice."""
    shortest = min(_SHORTEST_MINUTES, walltime_minutes)
    # A second of tolerance: hours are sums of fractions.
    fitting = min(workers, int((hours + 1 / 3600) * 60 // shortest))
    if fitting <= 0:
        return TopUp(workers=0, why="the node-hours granted are used; another submit grants more")
    return TopUp(
        workers=fitting, minutes=min(walltime_minutes, int((hours + 1 / 3600) * 60 // fitting))
    )


def write_grant(run_dir: Path, grant: Grant) -> None:
    """Let agents start workers within these bounds."""
    path = _file(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(to_json(grant))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def read_grant(run_dir: Path) -> Grant | None:
    """What stands now; None where agents may start nothing."""
    try:
        return from_json(Grant, _file(run_dir).read_bytes())
    except (OSError, CodecError):
        return None


def drop_grant(run_dir: Path) -> None:
    """Let nobody start workers any more."""
    _file(run_dir).unlink(missing_ok=True)


def _file(run_dir: Path) -> Path:
    return run_dir / "slurm" / "grant.json"
