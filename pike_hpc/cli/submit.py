"""`pike-hpc submit|resume|cancel`: start or continue a run, follow it here, stop its jobs."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path

from pike_hpc.archive import require_journal
from pike_hpc.cli import processes, slurm_jobs
from pike_hpc.cli.config import add_layers, resolve_from
from pike_hpc.cli.follow import Follower
from pike_hpc.cli.image import check_image, with_digest
from pike_hpc.cli.judging_torch import judging_device, left_out, require_torch
from pike_hpc.cli.models import check_keys
from pike_hpc.cli.named_tasks import named_tasks
from pike_hpc.cli.place import check_place
from pike_hpc.cli.run import Run
from pike_hpc.cli.setup import check_strategy
from pike_hpc.cli.signals import sigterm_as_ctrl_c
from pike_hpc.cli.simulate import simulate, walks
from pike_hpc.cli.slurm_submit import ask_first, check_key_files, print_plan, submit_to_slurm
from pike_hpc.cli.tape import VERDICT_TAPE, Tape, add_tape, tape_from
from pike_hpc.cli.watched import WatchedRun
from pike_hpc.config import Resolved, difference, env
from pike_hpc.evaluate.device import Device
from pike_hpc.launch import LocalLauncher, pack_code, plan_jobs, read_jobs
from pike_hpc.records import Task, UsageError, did_you_mean
from pike_hpc.worker import SIMULATED, CassetteJudge

_LOOK_S = 0.3
"""Between two looks at journals and jobs."""


def add_submit(parser: argparse.ArgumentParser) -> None:
    """Options of submit."""
    add_layers(parser)
    parser.add_argument("--run", dest="run_dir", type=Path, metavar="DIR", help="the run folder")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    mode.add_argument("--simulate", action="store_true", help="scripted model, made-up verdicts")
    add_tape(parser)
    parser.set_defaults(run=submit)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Options of resume."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    add_tape(parser)
    parser.set_defaults(run=resume)


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """Options of cancel."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    parser.set_defaults(run=cancel)


def submit(options: argparse.Namespace) -> int:
    """Start the run that the configuration names, or go on with it."""
    resolved = resolve_from(options)
    tasks, refused = named_tasks(resolved)
    check_strategy(resolved.workflow, len(tasks))
    for path, reason in refused:
        print(f"refused {path}: {reason}", file=sys.stderr)
    tape = tape_from(options)
    if options.simulate:
        if tape.arguments:
            raise UsageError(
                f"{tape.arguments[0]} has no meaning with --simulate: nothing is asked or measured",
                where=shlex.join(tape.arguments),
                fix="leave one of the two out",
            )
        return simulate(resolved, tasks, options.run_dir)
    if options.run_dir is not None:
        check_place(options.run_dir)
    resolved, device = _with_device(resolved, tape)
    folder = options.run_dir or resolved.run_dir
    if options.dry_run:
        return print_plan(resolved, folder.absolute(), tasks, lambda: _check_keys(resolved, tape))
    _check_keys(resolved, tape)
    is_new = not (folder / "run.yaml").exists()
    if resolved.site.scheduler == "slurm" and is_new:
        resolved = ask_first(resolved, folder.absolute(), tasks)
    if tape.replay is None and is_new:
        resolved = with_digest(resolved)
    if device is not None and is_new:  # no folder is made for a run that could not judge
        require_torch(resolved.site.container.engine, resolved.site.container.image)
        for line in left_out(resolved.site.container.engine, resolved.site.container.image):
            print(line, file=sys.stderr)
    run = _open_or_create(folder, resolved, tasks)
    return _go_on(run, device, tape, is_new=is_new)


def resume(options: argparse.Namespace) -> int:
    """Go on with a run, from its own run.yaml."""
    run = Run.open(options.run_dir)
    if walks(run.resolved) and not read_jobs(run.dir):
        return simulate(run.resolved, run.tasks, run.dir)
    local = run.resolved.site.scheduler == "local"
    tape = tape_from(options)
    check_keys(run.resolved, tape)
    device = None
    judges = local and tape.replay is None and run.device_kind != SIMULATED
    if judges and not run.finished():
        container = run.resolved.site.container
        device = judging_device(run.device_kind, container.engine, container.image)
    return _go_on(run, device, tape, is_new=False)


def cancel(options: argparse.Namespace) -> int:
    """Stop the jobs of a run; every journalled verdict stays."""
    run = Run.open(options.run_dir)
    processes.announce_cancel(run)
    try:
        jobs = slurm_jobs.cancel(run)
    finally:
        stopped = processes.stop(run)
    cancelled = f"cancelled {jobs} jobs, " if jobs else ""
    print(f"{cancelled}stopped {stopped} processes; all data is kept in {run.dir}", file=sys.stderr)
    print(f"continue with: pike-hpc resume {run.dir}", file=sys.stderr)
    return 0


def _check_keys(resolved: Resolved, tape: Tape) -> None:
    """Raises UsageError where agents would find no key."""
    check_keys(resolved, tape)
    check_key_files(resolved)


def _with_device(resolved: Resolved, tape: Tape) -> tuple[Resolved, Device | None]:
    """The configuration with `auto` decided, and the device where it is this machine's."""
    wanted = resolved.workflow.evaluate.devices[0]
    if tape.replay is not None:
        kind, device = CassetteJudge(tape.replay / VERDICT_TAPE).device_kind, None
    elif resolved.site.scheduler == "slurm":
        kind, device = _device_of_nodes(resolved, wanted), None
    elif wanted == SIMULATED:
        kind, device = SIMULATED, None
    else:
        container = resolved.site.container
        device = judging_device(wanted, container.engine, container.image)
        kind = device.kind
    evaluate = dataclasses.replace(resolved.workflow.evaluate, devices=(kind,))
    workflow = dataclasses.replace(resolved.workflow, evaluate=evaluate)
    return dataclasses.replace(resolved, workflow=workflow), device


def _device_of_nodes(resolved: Resolved, wanted: str) -> str:
    """The device kind of the site's jobs. Raises UsageError for one that they have not."""
    model = resolved.site.worker_job.gpu_model
    valid = ["auto", "cuda", "cpu", SIMULATED, *([model] if model else [])]
    if wanted not in valid:
        raise UsageError(
            f"no job of this site would judge on {wanted!r}",
            where=resolved.sources.get("evaluate.devices", "evaluate.devices"),
            valid=", ".join(valid),
            fix=did_you_mean(wanted, valid),
        )
    return model or "cpu" if wanted in ("auto", "cuda") else wanted


def _open_or_create(folder: Path, resolved: Resolved, tasks: tuple[Task, ...]) -> Run:
    if not (folder / "run.yaml").exists():
        return Run.create(folder, resolved, tasks)
    run = Run.open(folder)
    changed = list(difference(run.resolved.workflow, resolved.workflow))
    old, new = ({t.key: t.digest for t in some} for some in (run.tasks, tasks))
    changed += [f"task {key}: changed" for key in old.keys() & new.keys() if old[key] != new[key]]
    if changed:
        raise UsageError(
            "the workflow is not the one this run was made with:\n    " + "\n    ".join(changed),
            where=str(folder / "run.yaml"),
            fix="leave out --run for a new folder, or continue the old one: "
            f"pike-hpc resume {folder}",
        )
    return run


def _go_on(run: Run, device: Device | None, tape: Tape, *, is_new: bool) -> int:
    if device is not None:
        print(f"device: {device.why}", file=sys.stderr)
    elif run.device_kind == SIMULATED:
        print("device: simulated: verdicts are made up, models are asked as ever", file=sys.stderr)
    print(f"run: {run.dir}", file=sys.stderr)
    require_journal(run.dir)
    if run.finished():
        print("every task is finished: nothing is started", file=sys.stderr)
        return Follower(run).conclude()
    if tape.replay is None:
        check_image(run.resolved)
    if run.resolved.site.scheduler == "slurm":
        return submit_to_slurm(run, _plan(run, tape), tape, is_new=is_new)
    gpus = device.gpus if device is not None else ()
    run = WatchedRun.of(run)
    follower = Follower(run)
    run.mailbox.reopen()
    launcher = LocalLauncher(run.dir, gpus=range(len(gpus)))
    keeper = processes.LocalJobs(run, launcher, _plan(run, tape, gpus))
    code = _follow(run, follower, keeper)
    return code or follower.conclude()


def _follow(run: Run, follower: Follower, keeper: processes.LocalJobs) -> int:
    """Show the run until it is finished, its jobs kept going. 0, or why it stopped before."""
    try:
        with sigterm_as_ctrl_c():
            while not run.finished():
                code = keeper.keep_going()
                if code:
                    keeper.stop()
                    return code
                follower.show()
                time.sleep(_LOOK_S)
            follower.show()
            keeper.wait()
    except KeyboardInterrupt:
        print("\nstopping: what is being judged is finished or given back …", file=sys.stderr)
        keeper.stop()
        print(f"paused; continue with: pike-hpc resume {run.dir}", file=sys.stderr)
        return 130
    return 0


def _plan(run: Run, tape: Tape, gpus: tuple[str, ...] = ()) -> processes.Plan:
    lib = pack_code(run.dir)
    ids = [task.id for task in run.tasks]
    return plan_jobs(
        run.resolved,
        run.dir,
        ids,
        python=sys.executable,
        lib=lib,
        python_path=env.environ().get("PYTHONPATH", ""),
        gpus=gpus,
        arguments=tape.arguments,
    )
