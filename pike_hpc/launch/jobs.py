"""What is to be started, and the record of what was: RUN/slurm/jobs.jsonl.

The record is append-only and written after the start; what a crash between the two leaves at Slurm
is found again by its intent (see `pike_hpc.launch.intents`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pike_hpc.launch.exports import ALWAYS
from pike_hpc.records import CodecError, from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command to run as one job."""

    kind: str
    """worker or agent."""
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the job's environment: variable to value."""
    unset: tuple[str, ...] = ()
    """Taken out of it: a worker sees no API key."""
    exports: tuple[str, ...] = ALWAYS
    """Which of the submitter's variables a batch job gets, by name or pattern. A local process
    inherits them all but `unset`."""

    @property
    def command(self) -> tuple[str, ...]:
        """The argument vector, environment included, so that none is ever pickled."""
        unset = tuple(word for name in self.unset for word in ("-u", name))
        added = tuple(f"{name}={value}" for name, value in sorted(self.env.items()))
        return ("env", *unset, *added, *self.argv) if unset or added else self.argv


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job that was started."""

    job_id: str
    kind: str
    name: str
    launcher: str
    """local or slurm."""
    host: str
    submitted_at: float
    argv: tuple[str, ...]
    minutes: float = 0.0
    """The walltime asked for; 0 for a process of some machine's own."""
    process: str = ""
    """Start token of a local job's process: its pid is used again, and names another elsewhere."""


def jobs_file(run_dir: Path) -> Path:
    """Where the records of a run lie."""
    return run_dir / "slurm" / "jobs.jsonl"


def append_jobs(run_dir: Path, records: tuple[JobRecord, ...]) -> None:
    """Add records, on disk when this returns. A torn last line of before stays alone on its own."""
    path = jobs_file(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        torn = file.seek(0, os.SEEK_END) > 0 and not _ends_whole(file)
        lines = "".join(to_json(r) + "\n" for r in records)
        file.write(("\n" * torn + lines).encode())
        file.flush()
        os.fsync(file.fileno())


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_jobs(run_dir: Path) -> tuple[JobRecord, ...]:
    """The jobs started for a run so far, oldest first. A torn line is left out."""
    try:
        lines = jobs_file(run_dir).read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ()
    records = []
    for line in lines:
        try:
            records.append(from_json(JobRecord, line))
        except CodecError:
            continue
    return tuple(records)
