"""`pike-hpc agent RUN`: what the agent jobs of a run are, and a look at it from cron or a shell."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from pike_hpc.cli.lane_count import lanes_of
from pike_hpc.cli.models import make_models
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.sitting import Sitting
from pike_hpc.cli.tape import Tape, add_tape, tape_from
from pike_hpc.cli.terminal import leave_terminal
from pike_hpc.cli.wave import Wave
from pike_hpc.machine import stop_on_signals


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


def agent(options: argparse.Namespace) -> int:
    """Drive the search of a range of tasks; the last agent builds the archive."""
    run = Run.open(options.run_dir)
    me = f"agent-{writer_id()}"
    log = run.dir / "logs" / f"{me}.log"
    leave_terminal(log)
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
                lanes=lanes_of(run) if tape == Tape() else run.resolved.workflow.workers.count,
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
