"""Run folders whose verdicts are made up: for everything about a run but the judging."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from pike_hpc.cli.run import Run, tasks_of
from pike_hpc.config import env, resolve
from pike_hpc.worker import SimulatedJudge

DEVICE = "simulated"

_JUDGE = SimulatedJudge(device_kind=DEVICE, seed=4)


def make_run(folder: Path, workflow: str) -> Run:
    """A run that has not begun."""
    folder.mkdir()
    file = folder / "workflow.yaml"
    file.write_text("schema_version: 1\nname: looked-in-on\n" + workflow, "utf-8")
    resolved = resolve(file, "local", environ={"HOME": str(folder)}, sites_dir=env.sites_dir({}))
    evaluate = dataclasses.replace(resolved.workflow.evaluate, devices=(DEVICE,))
    whole = dataclasses.replace(resolved.workflow, evaluate=evaluate)
    resolved = dataclasses.replace(resolved, workflow=whole)
    tasks, _ = tasks_of(resolved)
    return Run.create(folder / "run", resolved, tasks)


def judge_all(run: Run) -> int:
    """Judge whatever lies in the mailbox, as a worker would; how many."""
    mailbox = run.mailbox
    claims = mailbox.claim("w", frozenset([DEVICE]), limit=10_000)
    for claim in claims:
        assert mailbox.judging(claim)
        assert mailbox.commit(claim, _JUDGE.evaluate(claim.request, lambda _: None))
    return len(claims)


def start_agent(run: Run, *arguments: str) -> "subprocess.Popen[str]":
    """`pike-hpc agent RUN …`, its message on stderr."""
    return subprocess.Popen(
        [sys.executable, "-m", "pike_hpc", "agent", str(run.dir), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
