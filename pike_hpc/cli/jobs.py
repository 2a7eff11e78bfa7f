"""`pike-hpc agent RUN` and `pike-hpc worker RUN`: what the jobs of a run are."""

from __future__ import annotations

import argparse
import gc
import logging
import logging.handlers
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pike_hpc import slurm
from pike_hpc.agent import AgentOptions, Controller, Models, active_seconds, run_agent
from pike_hpc.cli.lanes import lanes_each, open_judges
from pike_hpc.cli.models import make_models
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.setup import make_controller
from pike_hpc.cli.tape import VERDICT_TAPE, Tape, add_tape, tape_from
from pike_hpc.cli.walltime import walltime_end
from pike_hpc.cli.wave import Wave
from pike_hpc.config import env
from pike_hpc.evaluate.device import detect
from pike_hpc.launch import expected_lanes
from pike_hpc.records import Task, TryAgainLater, UsageError
from pike_hpc.worker import (
    SIMULATED,
    CassetteJudge,
    Judge,
    RecordingJudge,
    SimulatedJudge,
    WorkerOptions,
    run_worker,
    stop_on_signals,
)

_ONCE_IN_FLIGHT = 1000
"""Evaluations that an agent which only looks in now and then leaves for the workers, each time."""

_LEAVE_S = 60.0
"""Before its job's walltime ends an agent leaves: answers that are nearly here are waited for."""

_REHEARSAL_S = 1.0
"""How long a worker pretends to judge where a run's device is `simulated`."""

_LOG_BYTES = 4_000_000
_LOG_FILES = 2


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Options of the agent."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    parser.add_argument("--tasks", default="all", metavar="RANGE", help="default all")
    parser.add_argument(
        "--once",
        action="store_true",
        help="do what is ready, wait for open model calls, and return; tasks that another agent "
        "drives are left to it",
    )
    parser.add_argument(
        "--max-seconds",
        type=_seconds,
        default=0.0,
        metavar="N",
        help="return after so long; with --once no model call is waited for any longer",
    )
    add_tape(parser)
    parser.set_defaults(run=agent)


def add_worker(parser: argparse.ArgumentParser) -> None:
    """Options of the worker."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    add_tape(parser)
    parser.set_defaults(run=worker)


def agent(options: argparse.Namespace) -> int:
    """Drive the search of a range of tasks; the last agent builds the archive."""
    run = Run.open(options.run_dir)
    me = f"agent-{writer_id()}"
    _leave_terminal(run.dir / "logs" / f"{me}.log")
    controllers: list[Controller] = []
    tape = tape_from(options)
    models = make_models(run.resolved, tape)
    try:
        tasks = run.chosen(options.tasks)
        bounds = _bounds(run, options, tape)
        held = _take_over(run, tasks, me, models, controllers, share=options.once)
        wave = Wave(run, run.dir / "logs" / f"{me}.log")
        with stop_on_signals() as stop:
            outcome = run_agent(
                controllers,
                bounds,
                clock=time.monotonic,
                sleep=stop.wait,
                stopping=wave.watching(lambda: stop.reason is not None),
            )
        if options.once:
            wave.look()
    finally:
        for controller in controllers:
            controller.close()
        if models is not None:
            models.close()
    if all(controller.finished for controller in controllers) and run.finished():
        run.mailbox.close()
        _build_archive(run)
    if outcome.exit_code:
        print(f"pike-hpc: {outcome.reason}", file=sys.stderr)
    elif options.once:
        print(f"pike-hpc: {_one_tick(controllers, held)}", file=sys.stderr)
    return outcome.exit_code


def _bounds(run: Run, options: argparse.Namespace, tape: Tape) -> AgentOptions:
    wall_s = run.resolved.workflow.budget.wall_minutes * 60
    used_s = active_seconds(run.events(task) for task in run.tasks) if wall_s else 0.0
    lanes = _lanes(run) if tape == Tape() else run.resolved.workflow.workers.count
    ends = [options.max_seconds] if options.max_seconds else []
    end = walltime_end(run.resolved.site.agent.walltime_minutes)
    if end is not None:
        ends.append(max(end - time.time() - _LEAVE_S, 0.001))
    return AgentOptions(
        in_flight=_ONCE_IN_FLIGHT if options.once and not wall_s else 2 * lanes,
        wall_s=max(wall_s - used_s, 0.001) if wall_s else 0.0,
        sitting_s=min(ends, default=0.0),
        once=options.once,
    )


def _take_over(
    run: Run,
    tasks: Sequence[Task],
    me: str,
    models: Models | None,
    controllers: list[Controller],
    *,
    share: bool,
) -> int:
    """Add the controllers of `tasks`. How many tasks were left to others who drive them (`share`).

    Raises TryAgainLater where another holds a task and it isn't to be shared, or holds them all.
    """
    mailbox = run.mailbox
    held: list[TryAgainLater] = []
    # What is read here stays: looking for garbage in it time and again takes a quarter of all time.
    gc.disable()
    try:
        for task in tasks:
            try:
                controllers.append(make_controller(run, task, me, models, mailbox))
            except TryAgainLater as error:
                held.append(error)
                if not share:
                    raise
    finally:
        gc.freeze()
        gc.enable()
    if held and not controllers:
        raise held[0]
    return len(held)


def _build_archive(run: Run) -> None:
    # Most looks at a run are not its last: they need no HDF5.
    from pike_hpc.archive import is_current, rebuild  # noqa: PLC0415

    if not ((run.dir / "archive.h5").exists() and is_current(run.dir)):
        rebuild(run.dir)


def _one_tick(controllers: Sequence[Controller], held: int) -> str:
    """What a person reads in the log of whatever runs it now and then."""
    over = sum(controller.finished for controller in controllers)
    said = [
        f"{over} of {len(controllers)} tasks finished",
        f"{sum(controller.in_flight for controller in controllers)} evaluations asked for",
        f"{held} tasks driven by another agent" if held else "",
    ]
    next_ = "" if over == len(controllers) and not held else "; the same command goes on"
    return "one tick: " + ", ".join(filter(None, said)) + next_


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; valid: seconds, 0 for no limit")
    return seconds


def worker(options: argparse.Namespace) -> int:
    """Judge what the mailbox holds until told to leave."""
    run = Run.open(options.run_dir)
    me = f"worker-{writer_id()}"
    _leave_terminal(run.dir / "logs" / f"{me}.log")
    workflow = run.resolved.workflow
    job, restarts = slurm.own_job(env.environ())
    settings = WorkerOptions(
        worker_id=me,
        job=job,
        job_restarts=restarts,
        max_idle_s=workflow.workers.max_idle_s,
        walltime_end=walltime_end(run.resolved.site.worker_job.walltime_minutes),
    )
    settings = settings.on_shared_disk() if run.mailbox.shared else settings
    tape = tape_from(options)
    if tape.replay is not None:
        return run_worker(run.mailbox, [CassetteJudge(tape.replay / VERDICT_TAPE)], settings)
    if run.device_kind == SIMULATED:
        made_up = SimulatedJudge(SIMULATED, seed=workflow.search.seed, latency_s=_REHEARSAL_S)
        return run_worker(run.mailbox, [made_up], settings)
    device = detect(run.device_kind, visible=env.environ().get("CUDA_VISIBLE_DEVICES"))
    site, container = run.resolved.site, run.resolved.site.container
    with open_judges(device, container.engine, Path(site.paths.tmp), container.image) as opened:
        judges: Sequence[Judge] = opened
        if tape.record is not None:
            judges = [RecordingJudge(judge, tape.record / VERDICT_TAPE) for judge in judges]
        return run_worker(run.mailbox, judges, settings, preparer=opened[0])


def _lanes(run: Run) -> int:
    """How many requests its workers judge at once. A tape's run must not depend on the machine."""
    try:
        visible = env.environ().get("CUDA_VISIBLE_DEVICES")
        gpus = detect(run.device_kind, visible=visible).gpus
    except UsageError:  # the agent's machine has none: it only searches
        gpus = ()
    cores = len(os.sched_getaffinity(0)) // max(len(gpus), 1)
    return expected_lanes(run.resolved, len(gpus), lanes_each(cores, gpus))


def _leave_terminal(log: Path) -> None:
    """Leave the terminal's reach, so that its Ctrl-C stops the follower first; log to a file."""
    if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
        os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        log, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("pike_hpc").setLevel(logging.INFO)
