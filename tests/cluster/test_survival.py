"""A run on a real Slurm that loses workers, agents, nodes and its submitter ends like any other.

Its verdicts are made up (device `simulated`) and cost a second each; everything else is real. What
it should end like is the same workflow walked through in one process, without Slurm.
"""

import re
import shlex
import signal
import time
from pathlib import Path

import pytest
from builders.devcluster import REPO, await_that
from builders.rehearsal import SUBMIT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def words(rehearsal):
    """Of Slurm about the workers; of one that it does not know yet, None in words."""
    return sorted(map(str, rehearsal.workers().values()))


def test_workers_leave_are_preempted_and_lose_their_node(slurm, rehearsal, undisturbed):
    # Agents wait for the whole of their nodes, so that the first workers have nothing to do.
    busy = slurm.submit("sleep 600", "-p", "cpu", "--nodes=2", "--exclusive", "-t", "9")
    slurm.reaches(busy, "RUNNING")
    rehearsal.submit("worker_job.cpus=3", "workers.max_idle_s=5")  # one on each node
    await_that(lambda: words(rehearsal), ["COMPLETED"] * 2)
    slurm.run("scancel", busy)
    await_that(lambda: len(rehearsal.beats()), 2)
    rehearsal.judged_more(than=2)
    one, other = sorted(rehearsal.beats(), key=int_of)
    node, nodes = slurm.node(one), slurm.node(other)
    assert node != nodes
    slurm.cut_power(one)  # of the whole job: else Slurm may see the script end, and no node lost
    with slurm.down(node):
        high = slurm.submit("true", "-p", "gpu", f"--nodelist={nodes}", "--exclusive")
        slurm.reaches(high, "COMPLETED")
    rehearsal.ends_like(undisturbed)
    assert "NODE_FAIL" in slurm.run("sacct", "-nPXD", "-o", "State", "-j", one).splitlines()
    # The other heard that it had to go, ended what it judged, and left in time.
    slurm.await_accounts(other, "State", [["COMPLETED"]], "--duplicates")
    assert rehearsal.log().count("leaves: SIGTERM") == 1


def int_of(job):
    array, _, task = job.partition("_")
    return int(array), int(task or 0)


def test_who_does_not_leave_when_preempted_costs_one_evaluation(slurm, rehearsal, undisturbed):
    """It hears nothing, amid an evaluation, until Slurm kills it; that one is judged again."""
    rehearsal.submit("worker_job.cpus=3")
    rehearsal.judged_more(than=1)
    victim = sorted(rehearsal.beats(), key=int_of)[0]
    node = slurm.node(victim)
    with rehearsal.deaf(victim):
        high = slurm.submit("true", "-p", "gpu", f"--nodelist={node}", "--exclusive")
        slurm.reaches(high, "COMPLETED")
    rehearsal.ends_like(undisturbed)
    said = slurm.run("sacct", "-nPXD", "-o", "State", "-j", victim).splitlines()
    assert "PREEMPTED" in said
    assert "leaves: SIGTERM" not in rehearsal.log()
    assert rehearsal.log().count("requests of lost workers are in the queue again") == 1


def test_a_worker_hears_what_slurm_tells_submitits_process_alone(slurm, rehearsal):
    """As where jobs are followed by control groups, which this rig has none of."""
    rehearsal.submit("workers.count=1")
    rehearsal.judged_more(than=1)
    (worker,) = rehearsal.beats()
    status = Path(f"/proc/{rehearsal.pid(worker)}/status").read_text("utf-8")
    (wrapper,) = re.findall(r"^PPid:\s(\d+)", status, re.M)
    assert "submitit" in Path(f"/proc/{wrapper}/cmdline").read_text("utf-8")
    slurm.administer("kill", "-TERM", wrapper)
    slurm.await_accounts(worker, "State", [["COMPLETED"]])
    assert rehearsal.log().count("leaves: SIGTERM") == 1
    rehearsal.pike("cancel", "run")


def test_an_agent_that_loses_its_node_goes_on_at_another(slurm, rehearsal, undisturbed):
    """What it had journalled stands; the agent of the other task never notices."""
    half = ("sleep 600", "-p", "cpu", "-c", "2", "-t", "9")  # so that each node has room for one
    busy = [slurm.submit(*half, f"--nodelist={node}") for node in ("c3", "c4")]
    for job in busy:
        slurm.reaches(job, "RUNNING")
    rehearsal.submit("agent.tasks_per_job=1", "agent.cpus=2")
    await_that(lambda: sorted(rehearsal.agents().values()), ["RUNNING"] * 2)
    slurm.run("scancel", *busy)
    one, other = sorted(rehearsal.agents(), key=int_of)
    await_that(lambda: [n > 0 for n in rehearsal.judged_by_task()], [True, True])
    node, nodes = slurm.node(one), slurm.node(other)
    assert {node, nodes} == {"c3", "c4"}
    slurm.cut_power(one)
    with slurm.down(node):
        slurm.reaches(one, "PENDING", restarts=1)
        rehearsal.ends_like(undisturbed)
    lost_and_moved = [["COMPLETED", nodes], ["NODE_FAIL", node]]
    slurm.await_accounts(one, "State,NodeList", lost_and_moved, "--duplicates")
    slurm.await_accounts(other, "State,NodeList", [["COMPLETED", nodes]], "--duplicates")


def test_a_worker_whose_walltime_is_nearly_over_claims_nothing(rehearsal):
    """Nothing is known of how long judging takes: a minute is not enough for the first."""
    rehearsal.submit("worker_job.walltime_minutes=1")
    await_that(lambda: words(rehearsal)[:2], ["COMPLETED"] * 2)  # others may have come after them
    found = rehearsal.status()
    assert found["queue"]["new"] > 0
    assert (found["queue"]["claimed"], found["queue"]["done"]) == (0, 0)
    assert rehearsal.judged() == 0
    rehearsal.pike("cancel", "run")


SHORT = """case $SLURM_JOB_NAME in pike-worker*) \
export SLURM_JOB_END_TIME=$(($(date +%s) + 95)); esac"""
"""As Slurm 23.02 and later tell it; before the walltime's own end, which is in minutes. Of these
95 s the last ten are kept, and of the first evaluation it is taken that it lasts a minute."""


def test_a_drained_walltime_is_made_up_for_by_the_next_worker(slurm, rehearsal, undisturbed):
    """One evaluation takes more than half of what is left: another of its kind doesn't fit."""
    rehearsal.submit("workers.count=1", f'setup=["{SHORT}"]')
    rehearsal.judged_more(than=6)
    (first,) = rehearsal.beats()
    with rehearsal.frozen(first) as said:
        time.sleep((said.walltime_end - time.time()) / 2)  # so long the evaluation lasts, at least
    slurm.await_accounts(first, "State", [["COMPLETED"]])
    assert rehearsal.log().count("may not fit into the walltime left") == 1
    rehearsal.ends_like(undisturbed)
    assert len(rehearsal.workers()) > 1


SBATCH = """#!/bin/sh
/usr/bin/sbatch "$@" || exit
case "$*" in *--test-only*) exit;; esac
[ -e {mark} ] || {{ touch {mark}; kill -KILL $PPID; }}
"""


def test_what_a_dead_submitter_left_is_found_and_runs(slurm, rehearsal):
    """Killed between sbatch and the record: of the job nobody but Slurm knows."""
    slurm.run("mkdir", "programs")
    slurm.write("programs/sbatch", SBATCH.format(mark=slurm.folder / "killed"))
    path = f"{slurm.folder}/programs:/usr/local/bin:/usr/bin:/bin"
    done = slurm.tried(slurm.python, "-m", "pike_hpc", *SUBMIT, "run", PATH=path)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    orphan = slurm.run("squeue", "-h", "-o", "%A")
    assert rehearsal.status()["jobs"] == []
    said = slurm.tried(slurm.python, "-m", "pike_hpc", *SUBMIT, "run")
    assert said.returncode == 0, said.stderr
    assert f"agent job {orphan} was submitted by one that died: it is taken over" in said.stderr
    assert {line.split()[0] for line in said.stdout.splitlines()} == {"worker"}
    rehearsal.judged_more(than=0)  # it drives the search
    rehearsal.pike("cancel", "run")


def test_ticks_by_the_line_for_scrontab_drive_a_run(slurm, rehearsal):
    """Each does what is ready and leaves."""
    few = ("budget.evaluations_per_task=2", "workers.count=1")
    said = rehearsal.submit("agent.where=scrontab", *few)
    assert slurm.run("squeue", "-h", "-o", "%j").startswith("pike-worker-")
    *_, last = said.splitlines()
    times, command = last[: len("*/5 * * * *")], shlex.split(last)[5:]
    assert times == "*/5 * * * *"

    def state_after_a_tick():
        slurm.run(*command)
        return rehearsal.status()["state"]

    await_that(state_after_a_tick, "done")
    assert rehearsal.judged() >= 2


def test_jobs_submitted_by_hand_drive_a_run(slurm, rehearsal):
    """`sbatch --array=0-1 jobs/agents.sbatch RUN`, and a worker, beside no job of submit's."""
    rehearsal.submit("agent.tasks_per_job=1")
    rehearsal.pike("cancel", "run")
    jobs = REPO / "jobs"
    done = slurm.run(
        "sbatch", "--parsable", "-p", "cpu", "--array=0-1", str(jobs / "agents.sbatch"), "run"
    )
    notes = f'#!/bin/sh\nenv >seen\nexec {shlex.quote(slurm.python)} "$@"\n'
    exported = {"PYTHON": slurm.write("python", notes), "SOME_KEY": "sk-1"}
    submit = ("sbatch", "--parsable", "-p", "gpu", "--gpus=1", str(jobs / "eval_worker.sbatch"))
    worker = slurm.run(*submit, "run", **exported)
    await_that(lambda: len(rehearsal.status()["agents"]), 2)
    assert rehearsal.status()["state"] == "running"
    rehearsal.judged_more(than=rehearsal.judged())
    seen = (slurm.folder / "seen").read_text("utf-8")
    assert f"SLURM_JOB_ID={worker}\n" in seen
    assert "CUDA_VISIBLE_DEVICES=" in seen
    assert "SOME_KEY" not in seen
    slurm.run("scancel", done, worker)
