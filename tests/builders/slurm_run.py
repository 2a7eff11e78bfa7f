"""A workflow of four small tasks and a site with Slurm, in a folder; the run is called `run`."""

from pathlib import Path

import pytest
from builders.fake_slurm import FakeSlurm

WORKFLOW = """
schema_version: 1
name: quick
tasks: {path: tasks}
search: {strategy: rules}
workers: {count: 3}
"""

TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + NUMBER


def get_inputs():
    return [torch.randn(4)]


def get_init_inputs():
    return []
"""

SITE = """
schema_version: 1
name: here
scheduler: slurm
paths: {work: "runs"}
container: {engine: none}
agent: {where: array, tasks_per_job: 1}
"""

SUBMIT = ("submit", "--workflow", "w.yaml", "--site", "here.yaml", "--run", "run")


def lay_out(folder: Path) -> None:
    (folder / "tasks").mkdir()
    for n in range(1, 5):
        (folder / "tasks" / f"{n}_Add.py").write_text(TASK.replace("NUMBER", str(n)))
    (folder / "w.yaml").write_text(WORKFLOW)
    (folder / "here.yaml").write_text(SITE)


def scripted_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """That folder, entered, with Slurm's programs scripted on PATH."""
    fake = FakeSlurm(folder)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    monkeypatch.chdir(folder)
    lay_out(folder)
    return fake
