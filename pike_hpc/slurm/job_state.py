"""From the words of squeue and sacct to what is known of each job. Pure.

Lines are ID|STATE or ID|STATE|REASON. An ID is a job `12`, an array's task `12_4`, or tasks that
wait together: `12_[0-3,7%2]`, `12_[0-130:2]`, and cut off by older settings `12_[0,2,...]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

GONE = "GONE"
"""squeue answers and doesn't know the job, and how it ended nobody tells: it has ended."""

UNKNOWN = "UNKNOWN"
"""Neither squeue nor sacct could tell."""

_MAY_RETURN = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED"})
"""Slurm may have queued such a job again after the accounts were written."""

_ENDED = _MAY_RETURN | {
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "OUT_OF_MEMORY",
    "RECONFIG_FAIL",
    "TIMEOUT",
}
"""All other words, those of later versions too, count as living: nothing is started twice."""

_LINE = re.compile(r"([0-9]+)(?:_([0-9]+|\[[^\]|]*\]))?(?:\+[0-9]+)?\|\s*([A-Z_]+)[^|]*(?:\|(.*))?")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What is known of one job."""

    word: str
    """Slurm's own, such as PENDING, else GONE or UNKNOWN."""
    reason: str = ""
    """Why it waits, or why its state is not known."""
    alive: bool | None
    """Whether it runs or may run; None where nobody could tell."""

    def __str__(self) -> str:
        """For a person."""
        return f"{self.word} ({self.reason})" if self.reason else self.word


def job_states(jobs: Iterable[str], squeue: str | None, sacct: str | None) -> dict[str, JobState]:
    """What is known of each job, from what the two printed; None where one couldn't be asked.

    squeue knows every job that lives. sacct is behind by seconds, and knows how those ended that
    squeue has forgotten; a task that was cancelled as it waited is forgotten by both.
    """
    jobs = tuple(jobs)
    queued, accounted = _said(jobs, squeue or ""), _said(jobs, sacct or "")
    found = {}
    for job in jobs:
        word, reason = queued.get(job) or accounted.get(job) or (UNKNOWN, "squeue gave no answer")
        if job in queued:
            alive: bool | None = word not in _ENDED
        elif squeue is not None:
            alive = False
            if word not in _ENDED:
                word, reason = GONE, "Slurm no longer knows it"
        elif word == UNKNOWN or word in _MAY_RETURN:
            alive = None
        else:
            alive = word not in _ENDED
        found[job] = JobState(word=word, reason=reason, alive=alive)
    return found


def array_of(job: str) -> str:
    """The id of the array that a job is a task of, else its own."""
    return job.partition("_")[0]


def ended_runs(jobs: Iterable[str], sacct: str) -> dict[str, float]:
    """Seconds that each job ran, over all its runs, from lines JOB|STATE|SECONDS, one a run.

    Without those of which a run goes on, as far as the accounts know.
    """
    found: dict[str, float] = {}
    asked, going_on = set(jobs), set()
    for line in sacct.splitlines():
        job, _, rest = line.strip().partition("|")
        word, _, seconds = rest.partition("|")
        if job not in asked or not seconds.isdecimal():
            continue
        if word.partition(" ")[0] not in _ENDED | {"REQUEUED"}:
            going_on.add(job)
        found[job] = found.get(job, 0.0) + float(seconds)
    return {job: seconds for job, seconds in found.items() if job not in going_on}


def _said(jobs: tuple[str, ...], text: str) -> dict[str, tuple[str, str]]:
    """(word, reason) of those jobs that a text names.

    What it says of a task beats what it says of the array, and a living word beats an ended one.
    """
    asked = set(jobs)
    wanted: dict[str, list[str]] = {}
    for job in asked:
        wanted.setdefault(array_of(job), []).append(job)
    found: dict[str, tuple[str, str]] = {}
    ranks: dict[str, tuple[bool, bool]] = {}
    for array, tasks, word, reason in _lines(text):
        mine = wanted.get(array, [])
        if tasks.isdecimal():  # a line for each of thousands: not each of them is compared with all
            mine = [job for job in (f"{array}_{tasks}", array) if job in asked]
        for job in mine:
            named = _names(tasks, job)
            if named is None:
                continue
            rank = (named, word not in _ENDED)
            if job not in found or rank > ranks[job]:
                found[job], ranks[job] = (word, reason), rank
    return found


def _lines(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(array, its tasks as printed or "", word, reason) of each line that is one of a job."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            reason = (match[4] or "").strip()
            yield match[1], match[2] or "", match[3], "" if reason == "None" else reason


def _names(tasks: str, job: str) -> bool | None:
    """True where `tasks` names the job, False where it only may, None where it does not."""
    _, _, task = job.partition("_")
    if not tasks:
        return not task
    if not task.isdecimal():
        return False
    inside = tasks.strip("[]").partition("%")[0]
    for part in inside.split(","):
        span = _RANGE.fullmatch(part.strip())
        if span is None:
            continue
        low, high, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
        if low <= int(task) <= high and (int(task) - low) % max(step, 1) == 0:
            return True
    return False if "..." in inside else None
