"""A whole run: submitted by an ordinary user, searched in a job, judged in another, in an image.

No Python outside the image has torch.
"""

import json

import h5py
import pytest
from builders.devcluster import REPO, await_that

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(2400)]

WORKFLOW = """
schema_version: 1
name: rig
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
budget: {evaluations_per_task: 1, wall_minutes: 10}
evaluate: {devices: [auto], min_isolation: L3, timeout_s: 120}
workers: {count: 1, max_idle_s: 60}
"""


SHORT = (
    'tasks.ids="4,17"',
    "budget.evaluations_per_task=1",
    "agent.tasks_per_job=1",
    "workers.count=2",
)
"""Two of its tasks, a program of each; arrays of two, of workers and of agents."""


def test_the_quickstart_goes_through_slurm_and_apptainer(slurm, judge, image):
    assert judge.tried(judge.python, "-c", "import torch").returncode == 1
    workflow = ("--workflow", str(REPO / "workflows/quickstart.yaml"))
    short = [word for change in SHORT for word in ("--set", change)]
    site = ("--site", "devcluster", *short, "--run", str(judge.folder / "run"))
    pike = (judge.python, "-m", "pike_hpc")
    said = judge.run(*pike, "submit", *workflow, *site)
    jobs = [(kind, job) for kind, _, job in (line.split() for line in said.splitlines())]
    parts = [(kind, job.partition("_")[2]) for kind, job in jobs]
    assert sorted(parts) == [(kind, part) for kind in ("agent", "worker") for part in "01"]

    def state():
        return json.loads(judge.run(*pike, "status", "run", "--json"))["state"]

    await_that(state, "done", within_s=900)
    place = {"agent": ["cpu", "regular"], "worker": ["gpu", "preempt"]}
    for kind, job in jobs:
        slurm.reaches(job, "COMPLETED", within_s=180)
        slurm.await_accounts(job, "State,Partition,QOS", [["COMPLETED", *place[kind]]])
    report = json.loads(judge.run(*pike, "report", "run", "--json"))
    assert [task["status_counts"] for task in report["tasks"]] == [{"PASSED": 1}] * 2
    # Every verdict is filed under the image that it was reached in.
    digest = judge.run("sha256sum", image).split()[0]
    with h5py.File(judge.folder / "run/archive.h5") as archive:
        filed = [text.decode() for text in archive["evaluations"]["image_digest"]]
    assert filed == [f"sha256:{digest}"] * len(filed)


def test_a_worker_with_neither_image_nor_torch_says_so_at_once(slurm, judge):
    workflow = judge.write("workflow.yaml", WORKFLOW)
    neither = ("--set", "container.engine=auto", "--set", "container.image=null")
    site = ("--site", "devcluster", *neither, "--run", str(judge.folder / "bare"))
    pike = (judge.python, "-m", "pike_hpc")
    said = judge.run(*pike, "submit", "--workflow", workflow, *site)
    jobs = {kind: job for kind, _, job in (line.split() for line in said.splitlines())}
    slurm.reaches(jobs["worker"], "FAILED", within_s=60)
    status = judge.run(*pike, "status", "bare")
    judge.run(*pike, "cancel", "bare")
    assert "neither an image nor a torch here" in status
    assert "container.engine auto runs no image" in status
