"""A whole run: submitted by an ordinary user, searched in a job, judged in another, in an image.

No Python outside the image has torch.
"""

import json

import pytest
from builders.devcluster import REPO, await_that

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(2400)]

QUICKSTART = (
    *("--workflow", str(REPO / "workflows/quickstart.yaml"), "--site", "devcluster"),
    *("--set", "tasks.ids=4", "--set", "tasks.shape_overrides={}"),
    *("--set", "budget.evaluations_per_task=1", "--set", "evaluate.min_isolation=L3"),
)
"""One of its five tasks."""


def test_a_run_goes_through_slurm_and_apptainer(slurm, judge, image):
    assert judge.tried(judge.python, "-c", "import torch").returncode == 1
    pike = (judge.python, "-m", "pike_hpc")
    said = judge.run(*pike, "submit", *QUICKSTART, "--run", str(judge.folder / "run"))
    jobs = {kind: job for kind, _, job in (line.split() for line in said.splitlines())}
    assert set(jobs) == {"agent", "worker"}

    def state():
        return json.loads(judge.run(*pike, "status", "run", "--json"))["state"]

    await_that(state, "done", within_s=900)
    for job, partition, qos in (
        (jobs["agent"], "cpu", "regular"),
        (jobs["worker"], "gpu", "preempt"),
    ):
        slurm.reaches(job, "COMPLETED", within_s=180)
        slurm.await_accounts(job, "State,Partition,QOS", [["COMPLETED", partition, qos]])
    report = json.loads(judge.run(*pike, "report", "run", "--json"))
    (task,) = report["tasks"]
    assert task["status_counts"] == {"PASSED": 1}
    # Every verdict is filed under the image that it was reached in.
    digest = judge.run("sha256sum", image).split()[0]
    journal = "".join(f.read_text() for f in (judge.folder / "run/journal").rglob("*.jsonl"))
    assert f'"image_digest":"sha256:{digest}"' in journal.replace('": "', '":"')


def test_a_worker_with_neither_image_nor_torch_says_so_at_once(slurm, judge):
    neither = ("--set", "container.engine=auto", "--set", "container.image=null")
    place = (*neither, "--run", str(judge.folder / "bare"))
    pike = (judge.python, "-m", "pike_hpc")
    said = judge.run(*pike, "submit", *QUICKSTART, *place)
    jobs = {kind: job for kind, _, job in (line.split() for line in said.splitlines())}
    slurm.reaches(jobs["worker"], "FAILED", within_s=60)
    status = judge.run(*pike, "status", "bare")
    judge.run(*pike, "cancel", "bare")
    assert "neither an image nor a torch here" in status
    assert "container.engine auto runs no image" in status
