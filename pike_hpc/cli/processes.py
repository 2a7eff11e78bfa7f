"""The processes of a local run: start those that are missing, restart the dead, stop in order.

Who is alive is read where each says so itself: workers from their heartbeats, agents from the
holders of the task locks. So a second `submit` finds the first one's jobs and starts nothing
twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pike_hpc.cli.last_words import last_words
from pike_hpc.cli.run import Run, wait_for
from pike_hpc.journal import Held, Holder, WriterLock, controller_of, held_for_s, task_slug
from pike_hpc.launch import Job, Launcher, read_jobs
from pike_hpc.machine import start_ticks
from pike_hpc.mailbox import alive_here
from pike_hpc.records import Paused, TryAgainLater

Plan = tuple[tuple[Job, ...], tuple[Job, ...]]
"""(workers, agents)."""

_START_S = 20.0
"""A started job that hasn't shown itself after this long is taken for dead."""

_AT_IT_S = 300.0
"""Nobody looks and starts for so long: one that seems to was killed, on another node perhaps."""

_STOP_S = 15.0
"""How long processes get to leave in order."""

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

    def keep_going(self) -> int:
        """Start what is missing. 0, or the exit code with which a job gave up."""
        gave_up = self._paused()
        if gave_up is not None and not agents_of(self._run):
            _say(gave_up.reason)
            return gave_up.exit_code
        queue = self._run.mailbox.counts()
        judged = queue.done + sum(len(view.results) for view in self._run.views().values())
        if judged > self._judged:
            self._judged, self._restarts = judged, {"worker": 0, "agent": 0}
        # A worker that nobody needed has left (workers.max_idle_s): that is no death.
        if queue.new or queue.claimed or "worker" not in self._started:
            workers = [w for w in self._run.mailbox.workers() if alive_here(w.beat)]
            code = self._top_up("worker", self._workers[len(workers) :], alive=len(workers))
            if code:
                return code
        agents = agents_of(self._run)
        # An agent that gave its tasks back may still build the archive: it said before that it has
        # finished them.
        missing = () if agents or self._run.finished() else self._agents
        return self._top_up("agent", missing, alive=len(agents))

    def wait(self) -> None:
        """Let the jobs leave by themselves after the run is finished."""
        wait_for(lambda: not pids_of(self._run), _STOP_S)
        self.stop()

    def stop(self) -> None:
        """Ask all to leave, then make them."""
        stop(self._run)

    def _top_up(self, kind: str, missing: Sequence[Job], *, alive: int) -> int:
        """Start jobs that are missing; not 0 where that would be of no use."""
        if not missing or self._clock() - self._started.get(kind, -_START_S) < _START_S:
            return 0
        try:
            with only_starter(self._run.dir) as mine:
                if not mine or is_starting(self._run.dir, kind):
                    return 0  # another follower of this run has just started them
                return self._start(kind, missing, alive)
        except TryAgainLater as error:
            if error.what != self._said:
                self._said = error.what
                _say(str(error))
            return 0

    def _start(self, kind: str, missing: Sequence[Job], alive: int) -> int:
        if kind in self._started:
            said = last_words(self._run.dir, kind)
            if said is not None and not alive:
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


def is_starting(run_dir: Path, kind: str) -> bool:
    """Whether a job of this kind was started here just now and its process still lives."""
    return _just_started(run_dir, kind) > 0


def _just_started(run_dir: Path, kind: str) -> int:
    """How many jobs of this kind were started here just now and still live."""
    since = time.time() - _START_S
    return sum(
        job.kind == kind
        and job.launcher == "local"
        and job.host == socket.gethostname()
        and job.submitted_at > since
        and start_ticks(int(job.job_id)) is not None
        for job in read_jobs(run_dir)
    )


def _has_unshown(run: Run) -> bool:
    """Whether a job lives that was started just now and can't be found by `pids_of` yet."""
    workers = sum(bool(alive_here(seen.beat)) for seen in run.mailbox.workers())
    if _just_started(run.dir, "worker") > workers:
        return True
    return is_starting(run.dir, "agent") and not agents_of(run)


def stop(run: Run) -> int:
    """Ask every process of the run on this machine to leave, then kill; how many there were.

    One that is just starting is waited for: nobody could stop it later.
    """
    wait_for(lambda: not _has_unshown(run), _START_S)
    pids = pids_of(run)
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    if not wait_for(lambda: not pids_of(run), _STOP_S):
        for pid in pids_of(run):
            _signal(pid, signal.SIGKILL)
    return len(pids)


def pids_of(run: Run) -> tuple[int, ...]:
    """Workers and agents of the run that live on this machine."""
    workers = [w.beat.pid for w in run.mailbox.workers() if alive_here(w.beat)]
    agents = [h.pid for h in agents_of(run) if h.host == socket.gethostname()]
    return tuple(dict.fromkeys([*workers, *agents]))


def agents_of(run: Run) -> tuple[Holder, ...]:
    """The controllers at work, one entry a task."""
    holders = (controller_of(run.dir, task_slug(task.key)) for task in run.tasks)
    return tuple(h for h in holders if h is not None)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _say(line: str) -> None:
    print(f"pike-hpc: {line}", file=sys.stderr)
