"""Controllers of one task as an agent opens them, for searches with simulated verdicts."""

from collections.abc import Sequence
from pathlib import Path

from pike_hpc.agent import Controller, Models, TaskSetup, made_by
from pike_hpc.journal import Disk, TaskJournal, task_slug
from pike_hpc.mailbox import Mailbox
from pike_hpc.proposers.rules import Toolchain
from pike_hpc.records import Task, Tier
from pike_hpc.search import Limits, Strategy, make_strategy


def by_rules(portfolio: Sequence[Sequence[str]], limits: Limits) -> Strategy:
    """The search that tries these rules."""
    return make_strategy(
        "rules", options={}, seed=0, limits=limits, portfolio=portfolio, has_model=False
    )


def task_setup(
    task: Task, strategy: Strategy, limits: Limits, device_kind: str = "cpu"
) -> TaskSetup:
    """All tiers, a C++ compiler, nothing else of note."""
    return TaskSetup(
        task=task,
        device_kind=device_kind,
        image_digest="test",
        tiers=tuple(Tier),
        min_isolation="L1",
        timeout_s=60,
        strategy=strategy,
        limits=limits,
        toolchain=Toolchain(compiler="g++", python_headers=True),
    )


def open_search(
    run_dir: Path,
    setup: TaskSetup,
    mailbox: Mailbox,
    models: Models | None = None,
    disk: Disk | None = None,
) -> Controller:
    """The task's journal is made or continued in `run_dir`; the caller closes the controller."""
    slug = task_slug(setup.task.key)
    journal = TaskJournal.open(
        run_dir, slug, writer="t", seed=0, clock=lambda: 0.0, made_by=made_by(), disk=disk
    )
    return Controller(setup, journal, mailbox, models)
