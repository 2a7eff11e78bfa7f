"""One sitting of an agent: take tasks over, drive their search, give them back, file the run.

In a job of Slurm's a full disk does not end it: the tasks are given back, and taken over again
once there is room. Elsewhere a person reads the message and decides.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Sequence

from pike_hpc.agent import (
    AgentOptions,
    Controller,
    Models,
    Outcome,
    active_seconds,
    run_agent,
)
from pike_hpc.cli.keep import is_kept, keep
from pike_hpc.cli.room import await_room, tells_of_no_room
from pike_hpc.cli.run import Run
from pike_hpc.cli.setup import make_controller
from pike_hpc.cli.walltime import walltime_end
from pike_hpc.records import Task, TryAgainLater

_log = logging.getLogger(__name__)

_ONCE_IN_FLIGHT = 1000
"""Evaluations that an agent which only looks in now and then leaves for the workers, each time."""

_LEAVE_S = 60.0
"""Before its job's walltime ends an agent leaves: answers that are nearly here are waited for."""


class Sitting:
    """Of one process; one thread calls it."""

    def __init__(
        self,
        run: Run,
        writer: str,
        tasks: Sequence[Task],
        models: Models | None,
        *,
        lanes: int,
        max_s: float,
        once: bool,
    ) -> None:
        """`lanes`: how many requests the workers judge at once. `max_s`: 0 for no limit."""
        self._run, self._writer, self._tasks, self._models = run, writer, tasks, models
        self._lanes, self._once = lanes, once
        ends = [time.time() + max_s] if max_s else []
        end = walltime_end(run.resolved.site.agent.walltime_minutes)
        if end is not None:
            ends.append(end - _LEAVE_S)
        self._end = min(ends, default=None)
        self._controllers: tuple[Controller, ...] = ()
        self._held = 0

    def run(self, sleep: Callable[[float], None], stopping: Callable[[], bool]) -> Outcome:
        """To its end.

        Raises TryAgainLater where another agent holds a task and this one isn't to share them, or
        holds them all; and as `run_agent` does.
        """
        waits = self._run.resolved.site.scheduler == "slurm" and not self._once
        while True:
            error: Exception | None = None
            try:
                outcome = self._drive(sleep, stopping)
                said = outcome.reason if outcome.exit_code else ""
            except (TryAgainLater, OSError) as caught:
                error, said = caught, str(caught)
            if not waits or not tells_of_no_room(said):
                break
            _log.warning("waiting for room: %s", " ".join(said.split()))
            if not await_room(self._run.dir, lambda: not stopping() and not self._is_over(), sleep):
                break
        if error is not None:
            raise error
        return outcome

    def said(self) -> str:
        """What a person reads in the log of whatever runs an agent now and then."""
        over = sum(controller.finished for controller in self._controllers)
        said = [
            f"{over} of {len(self._controllers)} tasks finished",
            f"{sum(c.in_flight for c in self._controllers)} evaluations asked for",
            f"{self._held} tasks driven by another agent" if self._held else "",
        ]
        done = over == len(self._controllers) and not self._held
        return (
            "one tick: "
            + ", ".join(filter(None, said))
            + ("" if done else "; the same command goes on")
        )

    def _drive(self, sleep: Callable[[float], None], stopping: Callable[[], bool]) -> Outcome:
        run = self._run
        with contextlib.ExitStack() as closing:
            # What is read of a run stays: looking for garbage in it time and again takes a quarter
            # of all time. A single look is over before there is any worth looking for.
            gc.disable()
            closing.callback(gc.enable)
            self._take_over(closing)
            bounds = self._bounds()
            gc.freeze()
            if not self._once:
                gc.enable()
            outcome = run_agent(
                self._controllers, bounds, clock=time.monotonic, sleep=sleep, stopping=stopping
            )
        if all(controller.finished for controller in self._controllers) and run.finished():
            run.mailbox.close()
            _build_archive(run)
            # On Slurm nobody follows the run; elsewhere its follower copies it, page included.
            if run.resolved.site.scheduler == "slurm" and not is_kept(run):
                keep(run)
        return outcome

    def _bounds(self) -> AgentOptions:
        run = self._run
        wall_s = run.resolved.workflow.budget.wall_minutes * 60
        # Agents need not run at the same time: what another one's tasks took is not of this one's.
        open_tasks = [c.setup.task for c in self._controllers if not c.finished] if wall_s else []
        used_s = active_seconds(run.events(task) for task in open_tasks)
        return AgentOptions(
            in_flight=_ONCE_IN_FLIGHT if self._once and not wall_s else 2 * self._lanes,
            wall_s=max(wall_s - used_s, 0.001) if wall_s else 0.0,
            sitting_s=max(self._end - time.time(), 0.001) if self._end is not None else 0.0,
            once=self._once,
        )

    def _is_over(self) -> bool:
        return self._end is not None and time.time() >= self._end

    def _take_over(self, closing: contextlib.ExitStack) -> None:
        """Make the controllers, of all tasks or of those that nobody else drives."""
        controllers: list[Controller] = []
        held: list[TryAgainLater] = []
        mailbox = self._run.mailbox
        for task in self._tasks:
            try:
                controllers.append(
                    make_controller(self._run, task, self._writer, self._models, mailbox)
                )
                closing.callback(controllers[-1].close)
            except TryAgainLater as error:
                held.append(error)
                if not self._once:
                    raise
        self._controllers, self._held = tuple(controllers), len(held)
        if held and not controllers:
            raise held[0]


def _build_archive(run: Run) -> None:
    # Most looks at a run are not its last: they need no HDF5.
    from pike_hpc.archive import is_current, rebuild  # noqa: PLC0415

    if not ((run.dir / "archive.h5").exists() and is_current(run.dir)):
        rebuild(run.dir)
