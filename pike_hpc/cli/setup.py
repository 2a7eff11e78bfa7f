"""From a run's configuration to the controller of one task: strategy, limits, rules, journal."""

from __future__ import annotations

import dataclasses
import functools
import time

from pike_hpc.agent import Controller, Models, TaskSetup, made_by
from pike_hpc.cli.run import Run
from pike_hpc.evaluate.device import image_digest
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.mailbox import Mailbox
from pike_hpc.proposers.rules import Toolchain, portfolio, probe_toolchain
from pike_hpc.records import Task
from pike_hpc.search import Limits, make_strategy

_host_digest, _host_toolchain = functools.cache(image_digest), functools.cache(probe_toolchain)
"""Asked for each task of a run."""


def make_controller(
    run: Run, task: Task, writer: str, models: Models | None, mailbox: Mailbox
) -> Controller:
    """Take the task over. Raises TryAgainLater where another controller holds it."""
    workflow = run.resolved.workflow
    budget = workflow.budget
    limits = Limits(
        queries=budget.queries_per_task,
        evaluations=budget.evaluations_per_task,
        max_usd=budget.max_usd / max(len(run.tasks), 1),
        max_gpu_s=budget.max_gpu_hours * 3600 / max(len(run.tasks), 1),
    )
    strategy = make_strategy(
        workflow.search.strategy,
        options=workflow.search.options,
        seed=workflow.search.seed,
        limits=limits,
        portfolio=portfolio(run.device_kind),
        has_model=models is not None,
        tiers=workflow.evaluate.tiers,
    )
    setup = TaskSetup(
        task=task,
        device_kind=run.device_kind,
        image_digest=run.resolved.site.container.digest or _host_digest(),
        tiers=workflow.evaluate.tiers,
        min_isolation=workflow.evaluate.min_isolation,
        timeout_s=workflow.evaluate.timeout_s,
        strategy=strategy,
        limits=limits,
        toolchain=_toolchain(run),
    )
    journal = TaskJournal.open(
        run.dir, task_slug(task.key), writer=writer, seed=workflow.search.seed, clock=time.time,
        made_by=made_by(),
    )  # fmt: skip
    try:
        return Controller(setup, journal, mailbox, models)
    except BaseException:
        journal.close()  # and the task's lock: this very process may take it over again
        raise


def _toolchain(run: Run) -> Toolchain:
    """What rules may count on; of an image what every image must hold (containers/README.md)."""
    here = _host_toolchain()
    if not run.resolved.site.container.runs_image:
        return here
    return dataclasses.replace(here, compiler="g++", python_headers=True, tensorrt=False)
