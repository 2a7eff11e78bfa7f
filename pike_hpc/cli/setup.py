"""From a run's configuration to the controller of one task: strategy, limits, rules, journal."""

from __future__ import annotations

import dataclasses
import functools
import time

from pike_hpc.agent import Controller, Models, TaskSetup, made_by
from pike_hpc.cli.run import Run
from pike_hpc.config import Workflow
from pike_hpc.evaluate.device import image_digest
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.mailbox import Mailbox
from pike_hpc.proposers.rules import Toolchain, portfolio, probe_toolchain
from pike_hpc.records import Task
from pike_hpc.search import Limits, Strategy, make_strategy

_host_digest, _host_toolchain = functools.cache(image_digest), functools.cache(probe_toolchain)
"""Asked for each task of a run."""


def make_controller(
    run: Run, task: Task, writer: str, models: Models | None, mailbox: Mailbox
) -> Controller:
    """Take the task over. Raises TryAgainLater where another controller holds it."""
    workflow = run.resolved.workflow
    limits = _limits(workflow, len(run.tasks))
    strategy = _strategy(workflow, run.device_kind, limits, has_model=models is not None)
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


def check_strategy(workflow: Workflow, tasks: int) -> None:
    """Raises UsageError where agents could not make the search's strategy."""
    limits = _limits(workflow, tasks)
    _strategy(workflow, workflow.evaluate.devices[0], limits, has_model=workflow.asks_models)


def _strategy(workflow: Workflow, device_kind: str, limits: Limits, *, has_model: bool) -> Strategy:
    """The strategy that a workflow names. Raises UsageError for what it does not take."""
    return make_strategy(
        workflow.search.strategy,
        options=workflow.search.options,
        seed=workflow.search.seed,
        limits=limits,
        portfolio=portfolio(device_kind),
        has_model=has_model,
        tiers=workflow.evaluate.tiers,
    )


def _limits(workflow: Workflow, tasks: int) -> Limits:
    """One task's share of what a run of so many may spend."""
    budget = workflow.budget
    return Limits(
        queries=budget.queries_per_task,
        evaluations=budget.evaluations_per_task,
        max_usd=budget.max_usd / max(tasks, 1),
        max_gpu_s=budget.max_gpu_hours * 3600 / max(tasks, 1),
    )


def _toolchain(run: Run) -> Toolchain:
    """What rules may count on; of an image what every image must hold (containers/README.md)."""
    here = _host_toolchain()
    if not run.resolved.site.container.runs_image:
        return here
    return dataclasses.replace(here, compiler="g++", python_headers=True, tensorrt=False)
