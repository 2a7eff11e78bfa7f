"""A run on a real Slurm that loses its workers, its nodes and its submitter ends like no other.

Its verdicts are made up (device `simulated`) and cost a second each; everything else is real. What
it should end like is the same workflow walked through in one process, without Slurm.
"""

import json
import shlex
import signal
from pathlib import Path

import pytest
from builders.devcluster import REPO, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKFLOW = """
schema_version: 1
name: survival
tasks: {suite: level0, ids: "1-2"}
search: {strategy: rules}
evaluate: {devices: [simulated]}
workers: {count: 2, max_idle_s: 2}
"""
SUBMIT = ("submit", "--workflow", "workflow.yaml", "--site", "devcluster", "--run")


@pytest.fixture
def pike(slurm):
    """`pike(command, …)`: what it printed, in a folder with that workflow."""
    slurm.write("workflow.yaml", WORKFLOW)

    def run(*arguments, **env):
        return slurm.run(slurm.python, "-m", "pike_hpc", *arguments, timeout_s=120, **env)

    return run


@pytest.fixture
def ended_like_an_undisturbed_one(pike):
    """`…()`: wait for the end of `run`, then compare it with a run that nothing happened to."""

    def compare():
        await_that(lambda: status(pike)["state"], "done", within_s=120)
        pike(*SUBMIT, "undisturbed", "--simulate")
        wanted = pike("archive", "export", "--canonical", "undisturbed/archive.h5")
        assert pike("archive", "export", "--canonical", "run/archive.h5") == wanted

    return compare


def status(pike):
    return json.loads(pike("status", "run", "--json"))


def workers(pike):
    """State of each worker job by its id."""
    return {j["job_id"]: j["state"] for j in status(pike)["jobs"] if j["kind"] == "worker"}


def words(pike):
    return sorted(workers(pike).values())


def judged(pike):
    return sum(task["judged"] for task in status(pike)["tasks"])


def test_workers_leave_are_preempted_and_lose_their_node(
    slurm, pike, ended_like_an_undisturbed_one
):
    # Agents wait for the whole of their nodes, so that the first workers have nothing to do.
    busy = slurm.submit("sleep 600", "-p", "cpu", "--nodes=2", "--exclusive", "-t", "9")
    slurm.reaches(busy, "RUNNING")
    pike(*SUBMIT, "run", "--set", "worker_job.cpus=3")  # one on each node
    await_that(lambda: words(pike), ["COMPLETED"] * 2)
    slurm.run("scancel", busy)
    await_that(lambda: words(pike), ["COMPLETED"] * 2 + ["RUNNING"] * 2)
    await_that(lambda: judged(pike) > 2, True)
    one, other = sorted(workers(pike), key=int_of)[-2:]
    node, nodes = slurm.node(one), slurm.node(other)
    assert node != nodes
    try:
        slurm.administer("kill", "-KILL", pid_of(pike, one))  # as when its node loses power
        slurm.administer("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        high = slurm.submit("true", "-p", "gpu", f"--nodelist={nodes}", "--exclusive")
        slurm.reaches(high, "COMPLETED")
    finally:
        slurm.administer("scontrol", "update", f"nodename={node}", "state=resume")
    ended_like_an_undisturbed_one()
    assert "NODE_FAIL" in slurm.run("sacct", "-nPXD", "-o", "State", "-j", one).splitlines()
    # The other heard that it had to go, ended what it judged, and left in time.
    slurm.await_accounts(other, "State", [["COMPLETED"]], "--duplicates")
    logs = [log.read_text() for log in (slurm.folder / "run/logs").glob("worker-*.log")]
    assert sum("leaves: SIGTERM" in log for log in logs) == 1


def test_a_worker_whose_walltime_is_nearly_over_claims_nothing(slurm, pike):
    """Nothing is known of how long judging takes: a minute is not enough for the first."""
    short = ("worker_job.walltime_minutes=1", "worker_job.extra={signal: TERM@1}")
    pike(*SUBMIT, "run", *(word for text in short for word in ("--set", text)))
    await_that(lambda: words(pike), ["COMPLETED"] * 2)
    found = status(pike)
    assert found["queue"]["new"] > 0
    assert (found["queue"]["claimed"], found["queue"]["done"]) == (0, 0)
    assert judged(pike) == 0
    pike("cancel", "run")


def pid_of(pike, job):
    """The worker's process: every node is this machine."""
    array, _, task = job.partition("_")
    wanted = {f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}"}
    for worker in status(pike)["workers"]:
        pid = worker["id"].split("-")[-2]
        if wanted <= set(Path(f"/proc/{pid}/environ").read_text("utf-8").split("\0")):
            return pid
    raise AssertionError(f"no worker of job {job}")


def int_of(job):
    array, _, task = job.partition("_")
    return int(array), int(task or 0)


SBATCH = """#!/bin/sh
/usr/bin/sbatch "$@" || exit
case "$*" in *--test-only*) exit;; esac
[ -e {mark} ] || {{ touch {mark}; kill -KILL $PPID; }}
"""


def test_what_a_dead_submitter_left_is_found_and_runs(slurm, pike):
    """Killed between sbatch and the record: of the job nobody but Slurm knows."""
    slurm.run("mkdir", "programs")
    slurm.write("programs/sbatch", SBATCH.format(mark=slurm.folder / "killed"))
    path = f"{slurm.folder}/programs:/usr/local/bin:/usr/bin:/bin"
    done = slurm.tried(slurm.python, "-m", "pike_hpc", *SUBMIT, "run", PATH=path)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    orphan = slurm.run("squeue", "-h", "-o", "%A")
    assert status(pike)["jobs"] == []
    said = slurm.tried(slurm.python, "-m", "pike_hpc", *SUBMIT, "run")
    assert said.returncode == 0, said.stderr
    assert f"agent job {orphan} was submitted by one that died: it is taken over" in said.stderr
    assert {line.split()[0] for line in said.stdout.splitlines()} == {"worker"}
    await_that(lambda: judged(pike) > 0, True)  # it drives the search
    pike("cancel", "run")


def test_ticks_by_the_line_for_scrontab_drive_a_run(slurm, pike):
    """Each does what is ready and leaves."""
    few = ("--set", "budget.evaluations_per_task=2", "--set", "workers.count=1")
    said = pike(*SUBMIT, "run", "--set", "agent.where=scrontab", *few)
    assert slurm.run("squeue", "-h", "-o", "%j").startswith("pike-worker-")
    *_, last = said.splitlines()
    times, command = last[: len("*/5 * * * *")], shlex.split(last)[5:]
    assert times == "*/5 * * * *"

    def state_after_a_tick():
        slurm.run(*command)
        return status(pike)["state"]

    await_that(state_after_a_tick, "done")
    assert judged(pike) >= 2


def test_jobs_submitted_by_hand_drive_a_run(slurm, pike):
    """`sbatch --array=0-1 jobs/agents.sbatch RUN`, and a worker, beside no job of submit's."""
    pike(*SUBMIT, "run", "--set", "agent.tasks_per_job=1")
    pike("cancel", "run")
    jobs = REPO / "jobs"
    done = slurm.run(
        "sbatch", "--parsable", "-p", "cpu", "--array=0-1", str(jobs / "agents.sbatch"), "run"
    )
    worker = slurm.run("sbatch", "--parsable", "-p", "gpu", str(jobs / "eval_worker.sbatch"), "run")
    await_that(lambda: len(status(pike)["agents"]), 2)
    assert status(pike)["state"] == "running"
    before = judged(pike)
    await_that(lambda: judged(pike) > before, True)
    slurm.run("scancel", done, worker)
