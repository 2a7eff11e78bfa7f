"""When a worker counts as lost: by the process where it can be seen, by its job, by clocks last.

Slurm is asked about suspects only, by one process for all, seldom: its controller serves the
whole site. Knows nothing of files and of Slurm's words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pike_hpc.mailbox.lost import Stillness
from pike_hpc.mailbox.message import WorkerBeat
from pike_hpc.mailbox.protocol import JobsRun, Liveness

SUSPECT_SHARE = 0.25
"""Of `stale_s`: a counter that stands still for so long makes a suspect, and for so long an answer
serves all. At the usual 60 s that are three heartbeats, and one question in 15 s."""

FROZEN_STALES = 10
"""A worker whose job runs is lost only after so many `stale_s`: its node is frozen or cut off from
the file system. At the usual 60 s that is twice the 300 s (SlurmdTimeout's default) after which
Slurm itself calls a silent node down, so whatever Slurm can notice it has noticed by then."""

_ANSWER = "answer"
"""Under this name stillness tells how old the last answer is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What somebody heard of workers' jobs."""

    counter: int = 0
    """Grows with every question, whoever asks."""
    runs: Mapping[str, bool | None] = field(default_factory=dict)
    """Job to whether it runs; None where nobody could tell."""


class Board(Protocol):
    """Where those who share a mailbox tell each other what they heard."""

    def heard(self) -> Heard | None:
        """The last that was noted."""
        ...

    def note(self, heard: Heard) -> None:
        """Tell the others."""
        ...


class Leases:
    """One observer's judgement of workers. `ask` is None where there is no Slurm to ask."""

    def __init__(self, clock: Callable[[], float], ask: JobsRun | None, board: Board) -> None:
        self._ask, self._board = ask, board
        self._stillness = Stillness(clock)
        self._heard = Heard()

    def lost(
        self, beats: Mapping[str, WorkerBeat], *, stale_s: float, is_alive: Liveness
    ) -> set[str]:
        """The holders whose claims may be given to others."""
        still_s = {h: self._stillness.still_s(f"worker {h}", b.counter) for h, b in beats.items()}
        self._stillness.keep_only({_ANSWER, *(f"worker {h}" for h in beats)})
        alive = {h: is_alive(beat) for h, beat in beats.items()}
        suspects = [h for h in beats if alive[h] is None and still_s[h] >= SUSPECT_SHARE * stale_s]
        runs = self._jobs({job for h in suspects if (job := beats[h].job)}, stale_s)
        lost = {h for h in beats if alive[h] is False} | _replaced(beats)
        for holder in beats.keys() - lost:
            job_runs = runs.get(beats[holder].job or "") if holder in suspects else None
            patience_s = stale_s * (FROZEN_STALES if job_runs else 1)
            if job_runs is False or still_s[holder] >= patience_s:
                lost.add(holder)
        return lost

    def forget(self) -> None:
        """Stillness seen so far proves nothing: nobody could beat."""
        self._stillness.forget()

    def _jobs(self, jobs: Collection[str], stale_s: float) -> Mapping[str, bool | None]:
        if self._ask is None:
            return {}
        # Read even where nobody is suspect, so that the answer's age counts from the first sight.
        told = self._board.heard()
        if told is not None and told.counter > self._heard.counter:
            self._heard = told
        age_s = self._stillness.still_s(_ANSWER, self._heard.counter)
        if not jobs or self._fresh(age_s, stale_s):
            return self._heard.runs
        self._heard = Heard(counter=self._heard.counter + 1, runs=dict(self._ask(jobs)))
        self._stillness.still_s(_ANSWER, self._heard.counter)
        self._board.note(self._heard)
        return self._heard.runs

    def _fresh(self, age_s: float, stale_s: float) -> bool:
        if not self._heard.counter:
            return False
        # A Slurm that is silent is left alone until clocks have decided.
        silent = all(runs is None for runs in self._heard.runs.values())
        return age_s < stale_s * (1 if silent else SUSPECT_SHARE)


def _replaced(beats: Mapping[str, WorkerBeat]) -> set[str]:
    """Holders whose job was queued again and has a worker anew: of their run nothing is left."""
    newest: dict[str, int] = {}
    for beat in beats.values():
        if beat.job:
            newest[_whole(beat.job)] = max(newest.get(_whole(beat.job), 0), beat.job_restarts)
    return {h for h, b in beats.items() if b.job and b.job_restarts < newest[_whole(b.job)]}


def _whole(job: str) -> str:
    return job.partition(".")[0]
