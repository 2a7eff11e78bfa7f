"""What the latest job of a kind said when it ended by itself, read from its output file.

A job that ended with an explained error would say the same again: starting another is no help.
One that was killed said nothing, and one that could not reach the run has no file at all. Knows the
layout of submitit's folder and nothing of processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.launch import read_jobs

_SAID = re.compile(r"^pike-hpc: (.+\n(?:  \S.*\n)*)", re.MULTILINE)
"""A command's one message: what, then where, valid and next, each indented."""

_STATUS = re.compile(r"returned non-zero exit status (\d+)")
"""submitit's words for how the command ended."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """An explained error."""

    message: str
    exit_code: int


def last_words(run_dir: Path, kind: str) -> LastWords | None:
    """The error with which the latest worker or agent ended; None where it gave none."""
    ids = [record.job_id for record in read_jobs(run_dir) if record.kind == kind]
    return words_of(run_dir, ids[-1]) if ids else None


def words_of(run_dir: Path, job_id: str) -> LastWords | None:
    """The error with which one job ended; None where it gave none."""
    try:
        output = _output(run_dir, job_id).read_text("utf-8", "replace")
    except OSError:
        return None
    said, status = _SAID.search(output), _STATUS.search(output)
    if said is None or status is None:
        return None
    return LastWords(said[1].rstrip("\n"), int(status[1]))


def never_began(run_dir: Path, job_id: str) -> bool:
    """Whether a job of Slurm's that failed has no output file.

    Slurm makes it on the job's node before the first line runs: where it can't, because the folder
    is not there, the job fails in its first second and nobody has anything to say.
    """
    return not _output(run_dir, job_id).exists()


def _output(run_dir: Path, job_id: str) -> Path:
    return run_dir / "slurm" / f"{job_id}_0_log.out"
