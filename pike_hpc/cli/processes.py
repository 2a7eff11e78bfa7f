"""The processes of a local run: start those that are missing, restart the dead, stop in order.

Who is alive is read where each says so itself: workers from their heartbeats, agents from the
holders of the task locks. So a second `submit` finds the first one's jobs and starts nothing
twice.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pike_hpc.cli.last_words import last_words
from pike_hpc.cli.run import Run, wait_for
from pike_hpc.cli.starting import (
    Late,
    agent_pids,
    agents_of,
    all_unshown,
    beats,
    pids_below,
    unshown,
    worker_pids,
)
from pike_hpc.journal import Held, WriterLock, held_for_s
from pike_hpc.launch import Job, JobRecord, Launcher
from pike_hpc.machine import below
from pike_hpc.mailbox import STARTING
from pike_hpc.records import Paused, TryAgainLater

__all__ = [
    "LocalJobs",
    "Plan",
    "agents_of",
    "announce_cancel",
    "leave_s",
    "only_starter",
    "pids_of",
    "start_lock",
    "stop",
]

Plan = tuple[tuple[Job, ...], tuple[Job, ...]]
"""(workers, agents)."""

_START_S = 20.0
"""Between two starts of a kind: one that ends at once is started again at this pace. Who stops a
run waits as long for jobs to show themselves."""

_AT_IT_S = 300.0
"""Nobody looks and starts for so long: one that seems to was killed, on another node perhaps."""

_GIVE_BACK_S = 15.0
"""How long a worker may take to end what it no longer lets go on, and to give it back."""

_CANCELLED = 130
"""Exit code of a follower whose run somebody else has cancelled: as after its own Ctrl-C."""

_RESTARTS = 5
"""Deaths without a verdict in between after which a run stops trying."""


class LocalJobs:
    """Keeps the jobs of one run going from the process that follows it."""

    def __init__(
        self,
        run: Run,
        launcher: Launcher,
        plan: Plan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._launcher = run, launcher
        self._workers, self._agents = plan
        self._clock = clock
        self._since = time.time()
        self._started: dict[str, float] = {}
        self._restarts = {"worker": 0, "agent": 0}
        self._judged = 0
        self._said = ""
        self._late = Late(run, clock, _say)
        self._last_cancel = _last_cancel(run.dir)

    def keep_going(self) -> int:
        """Start what is missing. 0, or the exit code with which a job gave up or all is to end."""
        if self._is_cancelled():
            _say(f"this run was cancelled; continue with: pike-hpc resume {self._run.dir}")
            return _CANCELLED
        gave_up = self._paused()
        if gave_up is not None and not agents_of(self._run):
            _say(gave_up.reason)
            return gave_up.exit_code
        queue = self._run.mailbox.counts()
        judged = queue.done + sum(len(view.results) for view in self._run.views().values())
        if judged > self._judged:
            self._judged, self._restarts = judged, {"worker": 0, "agent": 0}
        late = self._late.look()
        if late is not None:
            _say(str(late))
            return late.exit_code
        # A worker that nobody needed has left (workers.max_idle_s): that is no death.
        if queue.new or queue.claimed or "worker" not in self._started:
            code = self._top_up("worker")
            if code:
                return code
        return self._top_up("agent")

    def wait(self) -> None:
        """Let the jobs leave by themselves after the run is finished."""
        wait_for(lambda: not pids_of(self._run), leave_s())
        self.stop()

    def stop(self) -> None:
        """Ask all to leave, then make them."""
        stop(self._run)

    def _is_cancelled(self) -> bool:
        try:
            return _last_cancel(self._run.dir) != self._last_cancel
        except OSError:  # a file system that fails for a moment cancels nothing
            return False

    def _missing(self, kind: str) -> Sequence[Job]:
        """Jobs of that kind of which no process lives."""
        if kind == "worker":
            return self._workers[len(worker_pids(self._run)) + len(unshown(self._run, kind)) :]
        # An agent that gave its tasks back may still build the archive: it said before that it has
        # finished them.
        there = agents_of(self._run) or unshown(self._run, kind) or self._run.finished()
        return () if there else self._agents

    def _top_up(self, kind: str) -> int:
        """Start jobs that are missing; not 0 where that would be of no use."""
        if self._clock() - self._started.get(kind, -_START_S) < _START_S:
            return 0
        if not self._missing(kind):
            return 0
        try:
            with only_starter(self._run.dir) as mine:
                # Whoever cancels a run says so before he stops what is missing here.
                missing = self._missing(kind) if mine else ()
                if self._is_cancelled():
                    return 0
                # None: another follower of this run has just started them.
                return self._start(kind, missing) if missing else 0
        except TryAgainLater as error:
            if error.what != self._said:
                self._said = error.what
                _say(str(error))
            return 0

    def _start(self, kind: str, missing: Sequence[Job]) -> int:
        if kind in self._started:
            said = last_words(self._run.dir, kind)
            others = kind == "worker" and (worker_pids(self._run) or unshown(self._run, kind))
            if said is not None and not others:
                _say(f"the {kind} gave up: {said.message}")
                return said.exit_code
            self._restarts[kind] += 1
            if self._restarts[kind] > _RESTARTS:
                logs = f"{self._run.dir / 'logs'} and {self._run.dir / 'slurm'}"
                _say(f"the {kind} died {_RESTARTS} times in a row; its output: {logs}")
                return 1
            _say(f"{'an' if kind == 'agent' else 'a'} {kind} is gone: starting another")
        self._launcher.submit(missing)
        self._started[kind] = self._clock()
        return 0

    def _paused(self) -> Paused | None:
        """Why an agent of this sitting stopped with an error, if one did."""
        for task in self._run.tasks:
            events = self._run.events(task)
            if not events or events[-1].time < self._since:
                continue
            last = events[-1].event
            if isinstance(last, Paused) and last.exit_code:
                return last
        return None


@contextlib.contextmanager
def only_starter(run_dir: Path) -> Iterator[bool]:
    """Whether no other process, on any node, looks at the jobs of a run and starts some just now.

    Raises TryAgainLater where one has been at it for minutes or the file system fails, UsageError
    where this node can't keep the others out.
    """
    path = start_lock(run_dir)
    try:
        lock = WriterLock.take(path, writer="a start of jobs", clock=time.time)
    except Held as held:
        if held_for_s(path, time.time()) > _AT_IT_S:
            raise TryAgainLater(
                f"somebody has been starting jobs of this run for minutes: {held.what}",
                where=str(path),
                fix=f"see whether that process is there still; if not: rm -r '{path}'*",
            ) from None
        yield False
        return
    with lock:
        yield True


def start_lock(run_dir: Path) -> Path:
    """The lock under which jobs of a run are started, and written down."""
    return run_dir / "slurm" / "locks" / "start"


def announce_cancel(run: Run) -> None:
    """Tell whoever follows the run, on any machine, to leave and to start none of its jobs again.

    Before they are stopped: a follower would take them for dead. A file system that takes no mark
    keeps nobody from stopping them; then a line says so.
    """
    mark = _mark(run.dir)
    try:
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(f"{time.time_ns()} {os.getpid()}\n", "utf-8")
    except OSError as error:
        _say(f"who follows this run can't be told, and may start jobs again: {error}")


def stop(run: Run, *, starts_s: float = _START_S, leaves_s: float | None = None) -> int:
    """Ask every process of the run on this machine to leave, then kill; how many there were.

    Those that somebody starts meanwhile, who goes on with the run already, are let be.

    Args:
        run: whose.
        starts_s: how long one that is just starting gets to show itself: then it leaves in order.
        leaves_s: how long they get for that; None: `leave_s`.
    """
    leaves_s = leave_s() if leaves_s is None else leaves_s
    wait_for(lambda: not all_unshown(run), starts_s)
    silent, pids = all_unshown(run), pids_of(run)
    told = {*pids, *itertools.chain(*map(pids_below, silent))}
    for pid in told:
        _signal(pid, signal.SIGTERM)

    def left() -> tuple[set[int], tuple[JobRecord, ...]]:
        mine = told.union(*map(pids_below, silent))  # one that showed itself since among them
        return mine.intersection(pids_of(run)), tuple(j for j in all_unshown(run) if j in silent)

    if not wait_for(lambda: not any(left()), leaves_s):
        shown, unseen = left()
        starting = {beat.pid for beat in beats(run) if beat.state == STARTING} & shown
        # What a trial started has a session of its own, and would outlive its worker.
        trees = [pids_below(job) for job in unseen] + [below(pid) for pid in starting]
        for pid in shown.union(*trees):
            _signal(pid, signal.SIGKILL)
    return len(pids) + len(silent)


def leave_s() -> float:
    """How long processes get to leave in order: as long as a worker lets what it judges go on.

    One that is killed before leaves a claim, which looks like a death of its worker; after a few
    of those the program that was judged is condemned.
    """
    # Most looks at a run stop nothing: they need none of what a worker does.
    from pike_hpc.worker import WorkerOptions  # noqa: PLC0415

    return WorkerOptions(worker_id="any").drain_s + _GIVE_BACK_S


def pids_of(run: Run) -> tuple[int, ...]:
    """Workers and agents of the run that live on this machine."""
    return tuple(sorted(worker_pids(run) | agent_pids(run)))


def _last_cancel(run_dir: Path) -> str:
    """Which cancel was the last; empty where there was none."""
    try:
        return _mark(run_dir).read_text("utf-8")
    except FileNotFoundError:
        return ""


def _mark(run_dir: Path) -> Path:
    return run_dir / "slurm" / "cancelled"


def _signal(pid: int, number: int) -> None:
    # One that is another user's by now must not keep the others going.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _say(line: str) -> None:
    print(f"pike-hpc: {line}", file=sys.stderr)
