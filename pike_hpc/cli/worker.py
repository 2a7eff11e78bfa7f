"""`pike-hpc worker RUN`: what the eval-worker jobs of a run are."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path

from pike_hpc import slurm
from pike_hpc.cli.arrival import Arrival
from pike_hpc.cli.judging_torch import judging_device
from pike_hpc.cli.lanes import open_judges
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.tape import VERDICT_TAPE, add_tape, tape_from
from pike_hpc.cli.terminal import leave_terminal
from pike_hpc.cli.walltime import drain_s, walltime_end
from pike_hpc.config import env
from pike_hpc.machine import Stop, stop_on_signals
from pike_hpc.worker import (
    SIMULATED,
    CassetteJudge,
    Judge,
    RecordingJudge,
    SimulatedJudge,
    WorkerOptions,
    run_worker,
)

_REHEARSAL_S = 1.0
"""How long a worker pretends to judge where a run's device is `simulated`."""


def add_worker(parser: argparse.ArgumentParser) -> None:
    """Options of the worker."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    add_tape(parser)
    parser.set_defaults(run=worker)


def worker(options: argparse.Namespace) -> int:
    """Judge what the mailbox holds until told to leave."""
    run = Run.open(options.run_dir)
    with stop_on_signals() as stop:
        code = _work(run, options, stop)
    # It may be told twice, by Slurm and by submitit's process: who leaves is not to die of that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def _work(run: Run, options: argparse.Namespace, stop: Stop) -> int:
    me = f"worker-{writer_id()}"
    leave_terminal(run.dir / "logs" / f"{me}.log")
    workflow, mailbox = run.resolved.workflow, run.mailbox
    job, restarts = slurm.own_job(env.environ())
    settings = WorkerOptions(
        worker_id=me,
        job=job,
        job_restarts=restarts,
        max_idle_s=workflow.workers.max_idle_s,
        walltime_end=walltime_end(run.resolved.site.worker_job.walltime_minutes),
    )
    settings = settings.on_shared_disk() if mailbox.shared else settings
    if job:
        within_s = min(settings.drain_s, drain_s(slurm.kill_wait_s()))
        settings = dataclasses.replace(settings, drain_s=within_s)
    tape = tape_from(options)
    if tape.replay is not None:
        taped = CassetteJudge(tape.replay / VERDICT_TAPE)
        return run_worker(mailbox, [taped], settings, stop=stop)
    if run.device_kind == SIMULATED:
        made_up = SimulatedJudge(SIMULATED, seed=workflow.search.seed, latency_s=_REHEARSAL_S)
        return run_worker(mailbox, [made_up], settings, stop=stop)
    site, container = run.resolved.site, run.resolved.site.container
    arrival = Arrival(mailbox, settings, run.device_kind)
    with contextlib.ExitStack() as stack:
        with arrival.or_leave():
            arrival.at("look at its device and at torch")
            device = judging_device(run.device_kind, container.engine, container.image)
            tmp, image = Path(site.paths.tmp), container.image
            opening = open_judges(device, container.engine, tmp, image, on_phase=arrival.at)
            opened = stack.enter_context(opening)
        judges: Sequence[Judge] = opened
        if tape.record is not None:
            judges = [RecordingJudge(judge, tape.record / VERDICT_TAPE) for judge in judges]
        return run_worker(mailbox, judges, settings, preparer=opened[0], stop=stop)
