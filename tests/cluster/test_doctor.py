"""`pike-hpc doctor` at a real Slurm: what it finds on the login node and in a job of each kind."""

import json

import pytest
from builders.devcluster import REPO

pytestmark = [pytest.mark.timeout(300)]


def examine(rig, *options):
    """Checks by name, and the exit code."""
    command = (rig.python, "-m", "pike_hpc", "doctor", "--site=devcluster", "--json", *options)
    done = rig.tried(*command, "--set", f"paths.work={rig.folder}/work", timeout_s=240)
    assert done.stdout, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}, done.returncode


def test_both_kinds_of_nodes_are_tried(slurm):
    workflow = str(REPO / "workflows/scripted.yaml")
    checks, code = examine(slurm, "--workflow", workflow, "--set", "container.engine=unshare")
    failed = {name: check for name, check in checks.items() if check["state"] == "fail"}
    assert not failed
    assert code == 0
    for name in ("lock", "clock", "quota", "account", "worker: node", "agent: node"):
        assert checks[name]["state"] == "ok", checks[name]
    for kind in ("worker", "agent"):
        # The login node holds the lock and has just written the file.
        assert checks[f"{kind}: visible"]["state"] == "ok"
        assert "held elsewhere holds here" in checks[f"{kind}: lock"]["detail"]
    assert checks["worker: isolation"]["detail"].startswith("L3 by unshare")
    assert checks["agent: model"]["detail"].startswith("answered: ")


def test_what_slurm_would_refuse_is_told_and_no_node_is_asked_for(slurm):
    checks, code = examine(slurm, "--set", "worker_job.qos=no-such")
    assert code == 1
    assert checks["account"]["state"] == "fail"
    assert "worker_job.qos = no-such" in checks["account"]["detail"]
    assert checks["nodes"]["state"] == "unknown"


def test_nodes_that_are_busy_are_unknown_and_not_wrong(slurm):
    busy = [slurm.submit("sleep 600", "-p", "gpu", "--exclusive") for _ in range(2)]
    for job in busy:
        slurm.reaches(job, "RUNNING")
    checks, _ = examine(slurm, "--wait-s", "2")
    assert checks["worker: node"]["state"] == "unknown"
    assert "--wait-s" in checks["worker: node"]["fix"]
    assert checks["agent: node"]["state"] == "ok"
