"""`submit --simulate`: the whole search, archive and report in seconds, every verdict made up.

One process, no torch, no model and no GPU: a scripted model plays where the workflow names one,
and verdicts are drawn from candidate and seed. Each is marked SIMULATED wherever it appears.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from pike_hpc.agent import AgentOptions, run_agent
from pike_hpc.archive import require_journal
from pike_hpc.cli.follow import Follower
from pike_hpc.cli.models import make_models
from pike_hpc.cli.place import check_place
from pike_hpc.cli.run import Run, writer_id
from pike_hpc.cli.setup import make_controller
from pike_hpc.config import ModelSpec, Resolved
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import Task, UsageError
from pike_hpc.worker import SIMULATED, SimulatedJudge

_SCRIPTED = ModelSpec(provider="scripted", model="default", key_env=None)


def simulate(resolved: Resolved, tasks: tuple[Task, ...], folder: Path | None) -> int:
    """Walk the search to its end and report. The folder's name ends in -simulated."""
    workflow, site = resolved.workflow, resolved.site
    resolved = dataclasses.replace(
        resolved,
        # Here, in this process, whatever the site: its resume walks on here, too.
        site=dataclasses.replace(
            site, scheduler="local", agent=dataclasses.replace(site.agent, where="shell")
        ),
        workflow=dataclasses.replace(
            workflow,
            evaluate=dataclasses.replace(workflow.evaluate, devices=(SIMULATED,)),
            models={role: _SCRIPTED for role in workflow.models},
        ),
    )
    folder = folder or resolved.run_dir.with_name(f"{resolved.run_name}-simulated")
    check_place(folder)
    run = Run.open(folder) if (folder / "run.yaml").exists() else None
    if run is not None and not walks(run.resolved):
        raise UsageError(
            "the run there was not made to be walked through",
            where=str(folder / "run.yaml"),
            fix=f"leave out --run for a new folder, or continue it: pike-hpc resume {folder}",
        )
    require_journal(folder)
    run = run or Run.create(folder, resolved, tasks)
    print("SIMULATED: no model was asked and nothing was measured", file=sys.stderr)
    follower = Follower(run)
    if not run.finished():
        _walk(run)
    return follower.conclude()


def walks(resolved: Resolved) -> bool:
    """Whether a run of that asks no model and no judge, so that one process walks through it."""
    workflow = resolved.workflow
    asked = {model.provider for model in workflow.models.values()}
    return (
        resolved.site.scheduler == "local"
        and workflow.evaluate.devices == (SIMULATED,)
        and asked <= {_SCRIPTED.provider}
    )


def _walk(run: Run) -> None:
    mailbox = MemoryMailbox()
    judge = SimulatedJudge(device_kind=SIMULATED, seed=run.resolved.workflow.search.seed)
    models = make_models(run.resolved)
    writer = f"agent-{writer_id()}"

    def judge_what_waits(_: float) -> None:
        for claim in mailbox.claim(writer, frozenset([SIMULATED]), limit=100):
            mailbox.judging(claim)
            mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))

    controllers = [make_controller(run, task, writer, models, mailbox) for task in run.tasks]
    try:
        run_agent(
            controllers,
            AgentOptions(in_flight=100),
            clock=time.monotonic,
            sleep=judge_what_waits,
            stopping=lambda: False,
        )
    finally:
        for controller in controllers:
            controller.close()
        if models is not None:
            models.close()
