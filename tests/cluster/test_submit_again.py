"""submit, again, status and cancel at a real Slurm: nothing twice, nothing left."""

import json

import pytest
from builders.devcluster import await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKFLOW = """
schema_version: 1
name: again
tasks: {suite: level0, ids: "1-3"}
search: {strategy: rules}
evaluate: {devices: [cpu]}
workers: {count: 2}
"""


@pytest.fixture
def pike(slurm):
    """`pike(command, …)`: the program at its end, in a folder with that workflow and run `run`."""
    slurm.write("workflow.yaml", WORKFLOW)

    def tried(*arguments, **env):
        argv = (slurm.python, "-m", "pike_hpc", *arguments)
        return slurm.tried(*argv, timeout_s=120, **env)

    return tried


def submit(pike, **env):
    place = ("--site", "devcluster", "--run", "run", "--set", "agent.tasks_per_job=1")
    no_image = ("--set", "container.engine=unshare")  # none is looked for
    done = pike("submit", "--workflow", "workflow.yaml", *place, *no_image, **env)
    return done.returncode, [line.split(" job ") for line in done.stdout.splitlines()], done.stderr


def states(pike):
    """(the run's state, the state of each job by its id)."""
    found = json.loads(pike("status", "run", "--json").stdout)
    return found["state"], {job["job_id"]: job["state"] for job in found["jobs"]}


def test_a_second_submit_starts_nothing_and_cancel_leaves_nothing(slurm, pike):
    # Workers wait for the whole of the GPUs' nodes, agents run at once.
    busy = slurm.submit("sleep 600", "-p", "gpu", "--nodes=2", "--exclusive", "-t", "9")
    slurm.reaches(busy, "RUNNING")
    code, started, said = submit(pike)
    assert code == 0, said
    assert [kind for kind, _ in started] == ["agent"] * 3 + ["worker"] * 2
    agents = [job for kind, job in started if kind == "agent"]
    wanted = {job: "RUNNING" if kind == "agent" else "PENDING" for kind, job in started}
    await_that(lambda: states(pike), ("running", wanted))

    code, again, said = submit(pike)
    assert (code, again) == (0, []), said
    assert f"agent job {agents[0]} is there: RUNNING" in said
    assert "nothing is started" in said

    elsewhere = slurm.write("no-slurm.conf", "ClusterName=none\nSlurmctldHost=none(127.0.0.1)\n")
    code, again, said = submit(pike, SLURM_CONF=elsewhere)
    assert (code, again) == (75, []), said
    assert "neither squeue nor sacct says" in said

    slurm.run("scancel", agents[1])
    await_that(lambda: states(pike)[1][agents[1]], "CANCELLED")
    code, again, said = submit(pike)
    assert (code, [kind for kind, _ in again]) == (0, ["agent"]), said

    done = pike("cancel", "run")
    assert done.returncode == 0, done.stderr
    assert "cancelled 5 jobs" in done.stderr
    state, jobs = states(pike)
    assert state == "paused"
    assert set(jobs.values()) == {"CANCELLED"}
    assert slurm.run("squeue", "-h", "-o", "%A") == busy
    assert (slurm.folder / "run" / "journal").is_dir()
