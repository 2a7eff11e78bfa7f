"""Leases judged by a real Slurm: whose job has ended is lost at once, and clocks come last.

The observer here takes the workers for those of another host, which it can't look at. Its clock is
the test's, so that a minute passes when it is told to.
"""

import json
from pathlib import Path

import pytest
from builders.devcluster import await_that

from pike_hpc import slurm as ours
from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import EvalRequest, Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

STALE_S = 60.0
WORKER = """
import os, sys
from pathlib import Path
from pike_hpc.cli.walltime import drain_s
from pike_hpc.mailbox import FileMailbox
from pike_hpc.slurm import kill_wait_s, own_job
from pike_hpc.worker import SimulatedJudge, WorkerOptions, run_worker
job, restarts = own_job(os.environ)
options = WorkerOptions(
    worker_id="w", job=job, job_restarts=restarts, drain_s=drain_s(kill_wait_s())
)
run_worker(FileMailbox(Path("box")), [SimulatedJudge("cpu", latency_s=900)], options)
"""


class Observer:
    """Looks after the mailbox from afar."""

    def __init__(self, root: Path) -> None:
        self.now_s, self.asked = 0.0, 0
        self.mailbox = FileMailbox(root, clock=lambda: self.now_s, jobs=self.ask)
        task = Task(suite="s", id="1", name="one", source="x")
        self.mailbox.put(
            EvalRequest(task=task, candidate_source="1", device_kind="cpu", image_digest="i")
        )

    def ask(self, jobs):
        self.asked += 1
        return ours.still_run(jobs)

    def requeued_at(self, now_s: float) -> int:
        """How many claims are given back when it looks at that time."""
        self.now_s = now_s
        return self.mailbox.requeue_lost(stale_s=STALE_S, is_alive=lambda beat: None)


@pytest.fixture
def observer(slurm):
    slurm.run("mkdir", "box")
    found = Observer(slurm.folder / "box")
    slurm.administer("chown", "-R", f"{slurm.uid}", str(slurm.folder / "box"))
    slurm.write("worker.py", WORKER)
    return found


def judging_in(slurm, observer, script, *options):
    """(the job of that script, its name as the worker tells, the worker's pid) once it judges."""
    job = slurm.submit(script.replace("PYTHON", slurm.python), "-p", "cpu", "-n1", *options)
    await_that(lambda: states(observer), ["judging"])
    (seen,) = observer.mailbox.workers()
    return job, seen.beat.job, seen.beat.pid


def frozen_in(slurm, observer, script, *options):
    """The same of a worker that stands still from there on: it beats no more."""
    found = judging_in(slurm, observer, script, *options)
    slurm.administer("kill", "-STOP", str(found[2]))
    return found


def states(observer):
    return [seen.beat.state for seen in observer.mailbox.workers()]


def test_a_worker_whose_job_is_killed_is_lost_long_before_its_beats_are_stale(slurm, observer):
    job, named, pid = frozen_in(slurm, observer, "srun PYTHON worker.py", "--array=1")
    assert named == f"{job}_1.0"
    assert [observer.requeued_at(at) for at in (0, 16, 70, 590)] == [0, 0, 0, 0]
    assert observer.asked == 3, "it runs: a frozen worker keeps its claim"
    slurm.administer("kill", "-KILL", str(pid))
    # Not the step alone: while the job is COMPLETING nobody can tell.
    whole = f"{job}_1"
    await_that(lambda: ours.still_run([named, whole]), {named: False, whole: False})
    other = Observer(slurm.folder / "box")
    assert [other.requeued_at(at) for at in (0, 16)] == [0, 1]
    (claim,) = other.mailbox.claim("v", frozenset({"cpu"}))
    assert claim.attempt == 2


def test_a_worker_whose_step_ended_within_a_job_that_runs_is_lost(slurm, observer):
    job, named, _ = frozen_in(slurm, observer, "srun PYTHON worker.py; sleep 300")
    assert named == f"{job}.0"
    slurm.run("scancel", "--signal=KILL", named)
    await_that(lambda: ours.still_run([named, job]), {named: False, job: True})
    assert [observer.requeued_at(at) for at in (0, 16)] == [0, 1]


def test_with_a_stopped_slurmctld_clocks_decide(slurm, observer):
    job, named, _ = frozen_in(slurm, observer, "exec PYTHON worker.py")
    assert named == job
    pid = slurm.administer("pidof", "slurmctld")
    slurm.administer("kill", "-STOP", pid)
    try:
        assert [observer.requeued_at(at) for at in (0, 16, 59)] == [0, 0, 0]
        assert observer.requeued_at(61) == 1
        said = json.loads((slurm.folder / "box/jobs.json").read_text())
        assert said["runs"] == {named: None}
        assert observer.asked == 1
    finally:
        slurm.administer("kill", "-CONT", pid)


def test_a_worker_that_is_preempted_gives_back_in_time_what_it_judges(slurm, observer):
    """Slurm kills it five seconds after SIGTERM here: that is no death that counts."""
    job, *_ = judging_in(slurm, observer, "srun PYTHON worker.py", "--qos=preempt", "--exclusive")
    node = slurm.node(job)
    high = slurm.submit("sleep 60", "-p", "cpu", f"--nodelist={node}", "--exclusive")
    slurm.reaches(high, "RUNNING")
    (claim,) = observer.mailbox.claim("v", frozenset({"cpu"}))
    assert claim.attempt == 1
