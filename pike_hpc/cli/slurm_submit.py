"""`submit` of a run to Slurm: what it may use, what Slurm says of it, what is started."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pike_hpc.cli import processes, slurm_jobs
from pike_hpc.cli.card_memory import too_large
from pike_hpc.cli.judging_torch import left_out
from pike_hpc.cli.run import Run
from pike_hpc.cli.tape import Tape
from pike_hpc.cli.wave import forget_why
from pike_hpc.config import Resolved, env
from pike_hpc.launch import (
    Grant,
    Missing,
    SlurmLauncher,
    dry_run,
    granted_hours,
    plan_jobs,
    preflight,
    read_intents,
    sbatch_is_here,
    scrontab_lines,
    share,
    shell_line,
    slurm_parameters,
    with_account,
    write_grant,
    write_scripts,
)
from pike_hpc.records import PikeError, Task, TryAgainLater, UsageError
from pike_hpc.slurm import DEFAULT_ARRAY_SIZE, max_array_size


def ask_first(resolved: Resolved, folder: Path, tasks: tuple[Task, ...]) -> Resolved:
    """For a run that is not there yet: say the ceiling, then who pays and when Slurm would start.

    Returns the configuration with its account. Raises what Slurm refuses; no folder is made: it
    would keep the site with the mistake.
    """
    plan = plan_on_paper(resolved, folder, tasks)
    print(ceiling(resolved, len(plan[1])), file=sys.stderr)
    _tell(too_large(tasks, resolved.site.worker_job.gpu_model))
    resolved = with_account(resolved)
    _tell(preflight(resolved, folder, at_slurm(resolved, plan)))
    _tell(said_of_scrontab(resolved, folder, plan))
    return resolved


def submit_to_slurm(run: Run, plan: processes.Plan, tape: Tape, *, is_new: bool) -> int:
    """Start what the run lacks; nothing that lives, or may live, is started again.

    Of one that `is_new` the ceiling was told, and Slurm asked, before it was made.
    """
    site = run.resolved.site
    if not is_new:
        print(ceiling(run.resolved, len(plan[1])), file=sys.stderr)
    with processes.only_starter(run.dir) as mine:
        if not mine:
            raise TryAgainLater(
                "another submit of this run is at work",
                where=str(run.dir),
                fix="run the same command again when it has returned",
            )
        slurm_jobs.take_over(run)
        todo = slurm_jobs.to_submit(run, at_slurm(run.resolved, plan))
        if not is_new:
            _tell(preflight(run.resolved, run.dir, (todo.workers, todo.agents)))
        run.mailbox.reopen()
        write_scripts(run.dir, run.resolved, plan[1][0])
        grant = _grant(run, todo, tape)
        write_grant(run.dir, grant)
        forget_why(run)
        part = share(grant.node_hours, len(plan[0]), site.worker_job.walltime_minutes)
        if not part.workers:
            print(f"no worker is started: {part.why}", file=sys.stderr)
        for kind, jobs, walltime in (
            ("agent", todo.agents, {}),
            ("worker", todo.workers[: part.workers], {"time": part.minutes}),
        ):
            parameters = slurm_parameters(run.resolved, kind, f"pike-{kind}") | walltime
            for record in SlurmLauncher(run.dir, parameters).submit(jobs):
                print(f"{record.kind} job {record.job_id}")
    slurm_jobs.refuse_to_guess(todo)
    _tell_where(run.resolved, run.dir)
    print(f"follow: pike-hpc status {run.dir} --watch", file=sys.stderr)
    return 0


def at_slurm(resolved: Resolved, plan: processes.Plan) -> processes.Plan:
    """The part of a plan that becomes jobs: agents live elsewhere where the site says so."""
    return plan if resolved.site.agent.where == "array" else (plan[0], ())


def said_of_scrontab(resolved: Resolved, folder: Path, plan: processes.Plan) -> tuple[str, ...]:
    """What Slurm refuses of the agent that scrontab is to start; none where it would take it.

    No more than a warning: a site may give a QOS or constraint to scrontab alone.
    """
    if resolved.site.agent.where != "scrontab":
        return ()
    try:
        preflight(resolved, folder, ((), plan[1][:1]))
    except PikeError as error:
        return ("by sbatch Slurm would not take the agent of scrontab:", *str(error).splitlines())
    return ()


def check_key_files(resolved: Resolved) -> None:
    """Raise UsageError where an agent started by scrontab would find no key.

    Such a job has nothing of a person's environment: keys come from files that no one else reads.
    """
    site = resolved.site
    if site.scheduler != "slurm" or site.agent.where != "scrontab":
        return
    if not resolved.workflow.asks_models:
        return
    for spec in resolved.workflow.models.values():
        if spec.provider != "openai" or not spec.key_env:
            continue
        if spec.key_env not in site.key_files:
            raise UsageError(
                f"agent.where: scrontab gets no {spec.key_env} from your environment",
                where=f"key_files.{spec.key_env} is not set",
                fix=f"write the key to a file of mode 0600 and name it in your own site file: "
                f"key_files: {{{spec.key_env}: FILE}}",
            )
        env.api_key(spec.key_env, {}, site.key_files)


def ceiling(resolved: Resolved, agents: int) -> str:
    """The most that a run may use, in one line."""
    workflow, site = resolved.workflow, resolved.site
    dollars = f"${workflow.budget.max_usd:.2f}" if workflow.asks_models else "$0.00"
    if site.scheduler == "local":
        minutes = workflow.budget.wall_minutes
        return f"ceiling: {f'{minutes:g} minutes' if minutes else 'no time limit'}, {dollars}"
    hours = f"{granted_hours(resolved):g} node-hours for {workflow.workers.count} workers"
    if site.agent.where == "array":
        agent_hours = agents * site.agent.walltime_minutes / 60
        hours += f", {agent_hours:g} job-hours of {site.agent.cpus} CPUs for {agents} agents"
    return f"ceiling: {hours}, {dollars} for models"


def plan_on_paper(resolved: Resolved, folder: Path, tasks: tuple[Task, ...]) -> processes.Plan:
    """The jobs of a run whose folder need not exist."""
    ids = [task.id for task in tasks]
    path = env.environ().get("PYTHONPATH", "")
    lib = folder / "code" / "lib"
    return plan_jobs(resolved, folder, ids, python=sys.executable, lib=lib, python_path=path)


def print_plan(
    resolved: Resolved, folder: Path, tasks: tuple[Task, ...], ready: Callable[[], None]
) -> int:
    """What submit would start now; nothing is written, neither here nor at Slurm.

    `ready` raises a PikeError where submit would not even begin.
    """
    plan = plan_on_paper(resolved, folder, tasks)
    print(f"# run folder: {folder}\n# tasks: {', '.join(t.key for t in tasks)}")
    print(f"# {ceiling(resolved, len(plan[1]))}")
    for line in too_large(tasks, resolved.site.worker_job.gpu_model):
        print(f"# {line}")
    with _shown():
        ready()
    container = resolved.site.container
    if resolved.site.scheduler == "local":
        for line in left_out(container.engine, container.image):
            print(f"# {line}")
    slurm = resolved.site.scheduler == "slurm"
    workers, agents = _still_missing(folder, at_slurm(resolved, plan)) if slurm else plan
    size = max_array_size() if slurm else DEFAULT_ARRAY_SIZE
    if slurm and sbatch_is_here():
        resolved = with_account(resolved)
        with _shown():
            for line in preflight(resolved, folder, (workers, agents)):
                print(f"# {line}")
        for line in said_of_scrontab(resolved, folder, plan):
            print(f"# {line}")
    walltime = {}
    if slurm:
        minutes = resolved.site.worker_job.walltime_minutes
        part = share(granted_hours(resolved), len(plan[0]), minutes)
        workers, walltime = workers[: part.workers], {"time": part.minutes}
    for kind, jobs, given in (("worker", workers, walltime), ("agent", agents, {})):
        parameters = slurm_parameters(resolved, kind, f"pike-{kind}") | given if slurm else None
        print(f"\n# {len(jobs)} {kind} job(s)")
        if jobs:
            print(dry_run(folder, jobs, parameters, size))
    if slurm:
        _tell_where(resolved, folder)
    return 0


@contextlib.contextmanager
def _shown() -> Iterator[None]:
    """An error of submit is a part of the plan."""
    try:
        yield
    except PikeError as error:
        for line in ("submit would stop here:", *str(error).splitlines()):
            print(f"# {line}")


def _still_missing(folder: Path, plan: processes.Plan) -> processes.Plan:
    """Of a plan, what a run that exists has not."""
    if not (folder / "run.yaml").exists():
        return plan
    run = Run.open(folder)
    if run.finished():
        print("# every task is finished: nothing is started")
        return (), ()
    for intent in read_intents(folder):
        print(f"# a submit was cut short: its jobs {intent.name} would be looked for first")
    todo = slurm_jobs.to_submit(run, plan)
    return todo.workers, todo.agents


def _grant(run: Run, todo: Missing, tape: Tape) -> Grant:
    """What this submit lets agents start later."""
    return Grant(
        since=time.time(),
        node_hours=granted_hours(run.resolved),
        kept=tuple(record.job_id for record, _ in todo.kept if record.kind == "worker"),
        python=sys.executable,
        python_path=env.environ().get("PYTHONPATH", ""),
        arguments=tape.arguments,
    )


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _tell_where(resolved: Resolved, folder: Path) -> None:
    """What a person does for the agent where it is no job of ours; stdout has the lines alone."""
    where = resolved.site.agent.where
    if where == "shell":
        print("the agent is yours to keep running, on a login node:", file=sys.stderr)
        print(shell_line(folder))
    elif where == "scrontab":
        print("add these lines with `scrontab -e`, take them out at the end:", file=sys.stderr)
        print(scrontab_lines(folder, resolved))
        said = "Slurm comments them out when their job is cancelled, as before a maintenance"
        print(f"{said}: uncomment them then, by `scrontab -e`", file=sys.stderr)
