"""`pike-hpc agent RUN` and `pike-hpc worker RUN`: what the jobs of a run are."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pike_hpc import slurm
from pike_hpc.cli.judging_torch import judging_device
from pike_hpc.cli.lanes import lanes_each, open_judges
from pike_hpc.cli.models import make_models
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.sitting import Sitting
from pike_hpc.cli.tape import VERDICT_TAPE, Tape, add_tape, tape_from
from pike_hpc.cli.walltime import walltime_end
from pike_hpc.cli.wave import Wave
from pike_hpc.config import env
from pike_hpc.evaluate.device import detect
from pike_hpc.launch import expected_lanes
from pike_hpc.records import UsageError
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
    log = run.dir / "logs" / f"{me}.log"
    _leave_terminal(log)
    tape = tape_from(options)
    models = make_models(run.resolved, tape)
    try:
        with stop_on_signals() as stop:
            wave = Wave(run, log)
            stopping = wave.watching(lambda: stop.reason is not None)
            sitting = Sitting(
                run,
                me,
                run.chosen(options.tasks),
                models,
                lanes=_lanes(run) if tape == Tape() else run.resolved.workflow.workers.count,
                max_s=options.max_seconds,
                once=options.once,
            )
            outcome = sitting.run(stop.wait, stopping)
        if options.once:
            wave.look()
    finally:
        if models is not None:
            models.close()
    if outcome.exit_code:
        print(f"pike-hpc: {outcome.reason}", file=sys.stderr)
    elif options.once:
        print(f"pike-hpc: {sitting.said()}", file=sys.stderr)
    return outcome.exit_code


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
    site, container = run.resolved.site, run.resolved.site.container
    device = judging_device(run.device_kind, container.engine, container.image)
    with open_judges(device, container.engine, Path(site.paths.tmp), container.image) as opened:
        judges: Sequence[Judge] = opened
        if tape.record is not None:
            judges = [RecordingJudge(judge, tape.record / VERDICT_TAPE) for judge in judges]
        return run_worker(run.mailbox, judges, settings, preparer=opened[0])


def _lanes(run: Run) -> int:
    """How many requests its workers judge at once. A tape's run must not depend on the machine."""
    try:
        visible = env.environ().get("CUDA_VISIBLE_DEVICES")
        # Whether their torch can use them is found out by those who judge.
        gpus = detect(run.device_kind, visible=visible, torch=lambda: None).gpus
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
