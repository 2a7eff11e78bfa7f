"""`pike-hpc doctor` at a real Slurm: what it finds on the login node and in a job of each kind."""

import json

import pytest
from builders.devcluster import REPO

pytestmark = [pytest.mark.timeout(300)]


def examine(rig, *options, timeout_s=240):
    """Checks by name, and the exit code."""
    command = (rig.python, "-m", "pike_hpc", "doctor", "--site=devcluster", "--json", *options)
    work = ("--set", f"paths.work={rig.folder}/work")
    done = rig.tried(*command, *work, timeout_s=timeout_s)
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
        assert checks[f"{kind}: claims"]["state"] == "ok", checks[f"{kind}: claims"]
        assert checks[f"{kind}: work"]["detail"].endswith("results committed by link")
        assert "GB free" in checks[f"{kind}: quota"]["detail"]
    assert checks["worker: isolation"]["detail"].startswith("L3 by unshare")
    assert checks["agent: model"]["detail"].startswith("answered: ")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_on_a_node_candidates_are_kept_in_the_image_and_the_network_is_cut(slurm, judge, image):
    """The site file as it is, by a user without torch; building the image takes the time."""
    checks, code = examine(judge, timeout_s=400)
    failed = {name: check for name, check in checks.items() if check["state"] == "fail"}
    assert not failed
    assert code == 0
    assert checks["image"]["state"] == "ok"
    assert checks["image"]["detail"].startswith(f"{image}, sha256:")
    assert checks["compiler"]["detail"].startswith("in the image: /usr/bin/g++")
    for place in ("", "worker: "):
        torch = checks[f"{place}torch"]
        assert (torch["state"], torch["detail"].endswith(f" in image {image}")) == ("ok", True)
        isolation = checks[f"{place}isolation"]
        assert isolation["state"] == "ok", isolation
        assert isolation["detail"].startswith("L3 by apptainer")
        open_ways = isolation["detail"].partition("not stopped: ")[2].split(", ")
        assert {"network", "network_interfaces", "abstract_socket"}.isdisjoint(open_ways)
    assert checks["worker: driver"]["state"] == "ok"


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
    checks, _ = examine(slurm, "--wait-s", "10")
    assert checks["worker: node"]["state"] == "unknown"
    assert "--wait-s" in checks["worker: node"]["fix"]
    assert checks["agent: node"]["state"] == "ok"
