"""The agent's look after the workers of its run: those that left are replaced while work waits.

Only where a person has submitted the run to Slurm and has not cancelled it since (the grant, see
`pike_hpc.launch.wave`). Whatever goes wrong here is logged and tried again later: a search goes on
with no worker at all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from pike_hpc import slurm
from pike_hpc.cli.processes import only_starter
from pike_hpc.cli.run import Run
from pike_hpc.cli.slurm_jobs import look
from pike_hpc.launch import (
    Grant,
    JobRecord,
    SlurmLauncher,
    expected_lanes,
    plan_jobs,
    read_grant,
    settle,
    slurm_parameters,
    top_up,
)
from pike_hpc.mailbox import alive_here
from pike_hpc.records import Evaluated, PikeError

_log = logging.getLogger(__name__)

_LOOK_S = 20.0
"""Between two looks; each may ask Slurm, whose controller serves the whole site."""

_FIRST_S = 5.0
"""Before the first one: what was journalled is in the mailbox by then."""

_REST_S = 1800.0
"""The longest rest after workers that came to nothing."""

_SILENT_S = 60.0
"""A worker whose last sign of life is older doesn't count as one."""


class Wave:
    """Tops the workers of one run up. One thread calls it."""

    def __init__(
        self, run: Run, log: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`log` is the agent's file in RUN/logs: touched at each look, it is its sign of life."""
        self._run, self._log, self._clock = run, log, clock
        self._next_at = clock() + _FIRST_S
        self._rest_s, self._rests_until, self._started_at = 0.0, 0.0, 0.0
        self._said = ""

    def watching(self, stopping: Callable[[], bool]) -> Callable[[], bool]:
        """`stopping`, with a look at the workers now and then."""

        def ask() -> bool:
            if self._clock() >= self._next_at:
                if self._log is not None:
                    with contextlib.suppress(OSError):
                        self._log.touch()
                self._next_at = self._clock() + _LOOK_S * random.uniform(0.75, 1.25)
                if self._clock() >= self._rests_until:
                    self.look()
            return stopping()

        return ask

    def look(self) -> tuple[JobRecord, ...]:
        """Start what is missing; what was started. Never raises for what another look may mend."""
        grant = read_grant(self._run.dir)
        if grant is None or self._run.resolved.site.scheduler != "slurm":
            return ()
        try:
            queue = self._run.mailbox.counts()
            if not queue.new + queue.claimed:
                return ()
            with only_starter(self._run.dir) as mine:
                return self._top_up(grant, queue.new + queue.claimed) if mine else ()
        except (PikeError, OSError) as error:
            self._say(str(error))
            return ()

    def _top_up(self, grant: Grant, open_requests: int) -> tuple[JobRecord, ...]:
        run = self._run
        settle(run.dir, time.time())
        known = [(record, state) for record, state in look(run) if record.kind == "worker"]
        if any(state.alive is None for _, state in known):
            self._say("Slurm doesn't say which workers live")
            return ()
        workflow = run.resolved.workflow
        judged_at = functools.cache(lambda: _judged_at(run))  # it reads all journals
        found = top_up(
            grant,
            known,
            slurm.used_s(r.job_id for r, s in known if s.alive is False) or {},
            open_requests=open_requests,
            lanes=expected_lanes(run.resolved, 0, 0) // workflow.workers.count,
            beating=_beating(run),
            most=workflow.workers.count,
            walltime_minutes=run.resolved.site.worker_job.walltime_minutes,
            judged_at=judged_at,
        )
        self._say(found.why)
        if not found.workers:
            return ()
        names = {record.name for record, state in known if state.alive}
        workers, _ = plan_jobs(
            run.resolved,
            run.dir,
            [task.id for task in run.tasks],
            python=grant.python,
            lib=run.dir / "code" / "lib",
            python_path=grant.python_path,
            arguments=grant.arguments,
        )
        jobs = [job for job in workers if job.name not in names][: found.workers]
        parameters = slurm_parameters(run.resolved, "worker", "pike-worker")
        launcher = SlurmLauncher(run.dir, parameters | {"time": found.minutes})
        # Workers that leave again without a verdict are started ever more seldom.
        fruitless = judged_at() < self._started_at
        self._rest_s = min(max(2 * self._rest_s, _LOOK_S), _REST_S) if fruitless else 0.0
        self._rests_until, self._started_at = self._clock() + self._rest_s, time.time()
        started = launcher.submit(jobs)
        _log.info("work waits: worker jobs %s", ", ".join(r.job_id for r in started))
        return started

    def _say(self, why: str) -> None:
        """Once for each reason, in the log and for `status`."""
        if why == self._said:
            return
        self._said = why
        if why:
            _log.warning("no worker is started: %s", why)
        with contextlib.suppress(OSError):
            _why_file(self._run).write_text(why, "utf-8")


def read_why(run: Run) -> str:
    """What kept agents from starting workers when they looked last; "" where nothing does."""
    try:
        return " ".join(_why_file(run).read_text("utf-8").split())
    except OSError:
        return ""


def forget_why(run: Run) -> None:
    """A person has submitted again: what was said before holds no more."""
    _why_file(run).unlink(missing_ok=True)


def _why_file(run: Run) -> Path:
    return run.dir / "slurm" / "why-no-worker.txt"


def _beating(run: Run) -> int:
    """Workers that show signs of life and will claim again."""
    return sum(
        seen.age_s < _SILENT_S and seen.beat.state != "draining"
        for seen in run.mailbox.workers()
        if alive_here(seen.beat) is not False
    )


def _judged_at(run: Run) -> float:
    """Unix time of the run's last verdict; 0 before the first."""
    times = [
        stamped.time
        for task in run.tasks
        for stamped in run.events(task)
        if isinstance(stamped.event, Evaluated)
    ]
    return max(times, default=0.0)
