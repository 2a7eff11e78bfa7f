"""A real Slurm: what jobs of an ordinary user see, and how they end."""

import json

import pytest

SAY = 'echo "$(whoami) $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES restart=${SLURM_RESTART_COUNT:-0}"'


def test_four_nodes_are_idle_and_have_gpus(slurm):
    said = slurm.run("sinfo", "-h", "-N", "-o", "%N %P %T %G")
    assert said.splitlines() == [
        "c1 gpu* idle gpu:a100:2",
        "c2 gpu* idle gpu:a100:2",
        "c3 cpu idle gpu:a100:2",
        "c4 cpu idle gpu:a100:2",
    ]


def test_an_array_runs_as_the_user_and_each_task_sees_its_gpu(slurm):
    # Each waits for the others, so that all four run at once and share the GPUs out.
    wait = f"touch here-$SLURM_ARRAY_TASK_ID; until [ $(ls {slurm.folder}/here-* | wc -l) = 4 ]; do"
    script = f"{wait} sleep 0.1; done; {SAY}"
    job = slurm.submit(script, "--array=0-3", "-p", "gpu", "--gpus-per-node=1", "-t", "2")
    tasks = [f"{job}_{n}" for n in range(4)]
    done = [[task, "COMPLETED", "0:0"] for task in tasks]
    slurm.await_accounts(job, "JobID,State,ExitCode", done)
    seen = [f"pike {node} {gpu} restart=0" for node in ("c1", "c2") for gpu in (0, 1)]
    assert sorted(slurm.printed(job)) == seen


def test_accounts_tell_how_each_job_ended(slurm):
    good = slurm.submit("exit 0")
    bad = slurm.submit("exit 3")
    killed = slurm.submit("kill -9 $$")
    stopped = slurm.submit("sleep 600")
    slurm.reaches(stopped, "RUNNING")
    slurm.run("scancel", stopped)
    for job, state, code in (
        (good, "COMPLETED", "0:0"),
        (bad, "FAILED", "3:0"),
        (killed, "FAILED", "0:9"),
        (stopped, f"CANCELLED by {slurm.uid}", "0:0"),
    ):
        slurm.await_accounts(job, "State,ExitCode,QOS,Account", [[state, code, "regular", "m0000"]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--account=m9999",), "Invalid account"),
        (("--qos=premium",), "Invalid qos"),
        (("--qos=debug", "--time=60"), "QOSMaxWallDurationPerJobLimit"),
        (("--constraint=hbm80g",), "Invalid feature"),
        (("--array=0-1001",), "Invalid job array"),
    ],
)
def test_what_is_not_allowed_is_refused_at_once(slurm, options, reason):
    refused = slurm.tried("sbatch", *options, "--wrap=true")
    assert refused.returncode == 1
    assert reason.lower() in refused.stderr.lower()


MAP = """
import json, os, submitit
executor = submitit.AutoExecutor("jobs")
executor.update_parameters(
    timeout_min=2, slurm_partition="gpu", gpus_per_node=1, slurm_array_parallelism=2
)
jobs = executor.map_array(pow, [2, 3, 4, 5], [2, 2, 2, 2])
print(json.dumps([executor.cluster, [job.result() for job in jobs]]))
"""


def test_submitit_maps_an_array(slurm):
    cluster, results = json.loads(slurm.run(slurm.python, "-c", MAP, timeout_s=120))
    assert cluster == "slurm"
    assert results == [4, 9, 16, 25]


KILLED = """
import os, signal, sys, submitit
executor = submitit.AutoExecutor("jobs")
executor.update_parameters(timeout_min=2)
job = executor.submit(os.kill, 0, signal.SIGKILL)
error = job.exception()
print(job.done(), type(error).__name__)
"""


def test_a_killed_job_of_submitit_is_done(slurm):
    """It would never be without accounting."""
    assert slurm.run(slurm.python, "-c", KILLED, timeout_s=120) == "True UncompletedJobError"


def test_a_job_that_may_be_preempted_is_requeued_and_runs_again(slurm):
    whole = ("-p", "gpu", "--nodes=2", "--gpus-per-node=2")
    # The first run sleeps, the second doesn't.
    low = slurm.submit(
        f'{SAY}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600',
        *whole,
        "--qos=preempt",
        "--requeue",
        "--open-mode=append",
    )
    slurm.reaches(low, "RUNNING")
    high = slurm.submit(SAY, *whole)
    slurm.reaches(high, "COMPLETED")
    slurm.reaches(low, "COMPLETED", restarts=1)
    # A batch script runs on the first node of its job, and sees both of that node's GPUs.
    assert slurm.printed(low) == ["pike c1 0,1 restart=0", "pike c1 0,1 restart=1"]
    slurm.await_accounts(low, "State", [["COMPLETED"], ["PREEMPTED"]], "--duplicates")


def test_a_node_that_goes_down_gives_its_job_back(slurm):
    script = f'{SAY}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    job = slurm.submit(script, "-p", "cpu", "--requeue", "--open-mode=append")
    slurm.reaches(job, "RUNNING")
    node = slurm.node(job)
    try:
        slurm.administer("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        slurm.reaches(job, "COMPLETED", restarts=1)
        other = {"c3": "c4", "c4": "c3"}[node]
        assert slurm.printed(job) == [f"pike {node}  restart=0", f"pike {other}  restart=1"]
        slurm.await_accounts(job, "State", [["COMPLETED"], ["NODE_FAIL"]], "--duplicates")
    finally:
        slurm.administer("scontrol", "update", f"nodename={node}", "state=resume")
