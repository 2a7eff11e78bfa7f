"""`pike-hpc agent RUN` and `pike-hpc worker RUN`: what the jobs of a run are."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pike_hpc.agent import AgentOptions, Controller, active_seconds, run_agent
from pike_hpc.archive import rebuild
from pike_hpc.cli.lanes import lanes_each, open_judges
from pike_hpc.cli.models import make_models
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.setup import make_controller
from pike_hpc.cli.tape import VERDICT_TAPE, Tape, add_tape, tape_from
from pike_hpc.config import env
from pike_hpc.evaluate.device import detect
from pike_hpc.launch import expected_lanes
from pike_hpc.records import UsageError
from pike_hpc.worker import (
    CassetteJudge,
    Judge,
    RecordingJudge,
    WorkerOptions,
    run_worker,
    stop_on_signals,
)

_LOG_BYTES = 4_000_000
_LOG_FILES = 2


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Options of the agent."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    parser.add_argument("--tasks", default="all", metavar="RANGE", help="default all")
    parser.add_argument("--once", action="store_true", help="do what is ready, then return")
    parser.add_argument("--max-seconds", type=float, default=0.0, help="return after this long")
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
        used_s = active_seconds(run.events(task) for task in run.tasks)
        wall_s = run.resolved.workflow.budget.wall_minutes * 60
        controllers += [make_controller(run, task, me, models, run.mailbox) for task in tasks]
        bounds = AgentOptions(
            in_flight=2 * (_lanes(run) if tape == Tape() else run.resolved.workflow.workers.count),
            wall_s=max(wall_s - used_s, 0.001) if wall_s else 0.0,
            sitting_s=options.max_seconds,
            once=options.once,
        )
        with stop_on_signals() as stop:
            outcome = run_agent(
                controllers,
                bounds,
                clock=time.monotonic,
                sleep=stop.wait,
                stopping=lambda: stop.reason is not None,
            )
    finally:
        for controller in controllers:
            controller.close()
        if models is not None:
            models.close()
    if run.finished():
        run.mailbox.close()
        rebuild(run.dir)
    if outcome.exit_code:
        print(f"pike-hpc: {outcome.reason}", file=sys.stderr)
    return outcome.exit_code


def worker(options: argparse.Namespace) -> int:
    """Judge what the mailbox holds until told to leave."""
    run = Run.open(options.run_dir)
    me = f"worker-{writer_id()}"
    _leave_terminal(run.dir / "logs" / f"{me}.log")
    workflow = run.resolved.workflow
    settings = WorkerOptions(worker_id=me, max_idle_s=workflow.workers.max_idle_s)
    settings = settings.on_shared_disk() if run.mailbox.shared else settings
    tape = tape_from(options)
    if tape.replay is not None:
        return run_worker(run.mailbox, [CassetteJudge(tape.replay / VERDICT_TAPE)], settings)
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
