"""What is about to be submitted, on disk before sbatch runs: no job of a dead submitter is lost.

An intent is a file in RUN/slurm/intents, named like the jobs that sbatch is to start; it goes once
they are on record. One that lies there belongs to a submitter that died, or that never heard what
became of its call. Slurm knows jobs by their names: the next to submit asks and takes them over.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.launch.jobs import Job
from pike_hpc.records import CodecError, from_json, to_json

UNDER_WAY_S = 60.0
"""So long a call of sbatch may still reach Slurm after its submitter has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One call of sbatch: a job, or an array with a task for each job."""

    name: str
    """What the job is called at Slurm; no other has that name."""
    jobs: tuple[Job, ...]
    minutes: float
    """Their walltime."""
    since: float
    """Unix time."""

    def ids(self, array: str) -> tuple[str, ...]:
        """The id of each job, given that of the whole."""
        if len(self.jobs) == 1:
            return (array,)
        return tuple(f"{array}_{n}" for n in range(len(self.jobs)))


def new_intent(jobs: Sequence[Job], prefix: str, minutes: float, now: float) -> Intent:
    """An intent with a name of its own."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    return Intent(name=name, jobs=tuple(jobs), minutes=minutes, since=now)


def write_intent(run_dir: Path, intent: Intent) -> None:
    """File it, on disk when this returns."""
    folder = _folder(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"{intent.name}.new"
    with beside.open("w", encoding="utf-8") as file:
        file.write(to_json(intent))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / f"{intent.name}.json")


def drop_intent(run_dir: Path, intent: Intent) -> None:
    """Its jobs are on record, or there are none."""
    (_folder(run_dir) / f"{intent.name}.json").unlink(missing_ok=True)


def read_intents(run_dir: Path) -> tuple[Intent, ...]:
    """Those that nobody has dropped, oldest first."""
    found = []
    for path in _folder(run_dir).glob("*.json"):
        try:
            found.append(from_json(Intent, path.read_text(encoding="utf-8")))
        except (OSError, CodecError):  # dropped meanwhile; a half of one was never renamed
            continue
    return tuple(sorted(found, key=lambda intent: intent.since))


def _folder(run_dir: Path) -> Path:
    return run_dir / "slurm" / "intents"
