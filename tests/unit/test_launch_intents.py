"""A submitter may die at any moment: its jobs are found by name, and none is submitted twice."""

import pickle
import time

import pytest
from builders.fake_slurm import FakeSlurm

from pike_hpc.launch import Job, SlurmLauncher, read_intents, read_jobs, settle
from pike_hpc.launch.intents import new_intent, write_intent
from pike_hpc.records import TryAgainLater

JOBS = [Job(kind="agent", name=f"pike-agent-{n}", argv=("echo", str(n))) for n in range(3)]
PARAMETERS = {"job_name": "pike-agent", "time": 30}
DEAD_FOR_S = 120.0


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    return fake


@pytest.fixture
def intent(tmp_path):
    """One whose submitter died two minutes ago."""
    made = new_intent(JOBS, "pike-agent", 30, time.time() - DEAD_FOR_S)
    write_intent(tmp_path, made)
    return made


def test_after_a_submit_no_intent_is_left(cluster, tmp_path):
    records = SlurmLauncher(tmp_path, PARAMETERS).submit(JOBS)
    assert read_intents(tmp_path) == ()
    assert [(r.job_id, r.name, r.minutes) for r in records] == [
        (f"1_{n}", f"pike-agent-{n}", 30) for n in range(3)
    ]


def test_the_intent_is_on_disk_before_sbatch_runs(cluster, tmp_path):
    script = (cluster.programs / "sbatch").read_text()
    cluster.program("sbatch", f"ls {tmp_path}/slurm/intents > {tmp_path}/seen\n{script}")
    SlurmLauncher(tmp_path, PARAMETERS).submit(JOBS)
    (name,) = (tmp_path / "seen").read_text().split()
    assert cluster.lines("names") == [f"{name.removesuffix('.json')} 1"]


def test_what_slurm_took_is_put_on_record_with_the_commands_it_waits_for(cluster, tmp_path, intent):
    cluster.put("names", f"{intent.name} 41\nother-name 40\n")
    found = settle(tmp_path, time.time())
    assert [(r.job_id, r.name) for r in found] == [(f"41_{n}", j.name) for n, j in enumerate(JOBS)]
    assert read_jobs(tmp_path) == found
    assert read_intents(tmp_path) == ()
    submitted = pickle.loads((tmp_path / "slurm" / "41_2_submitted.pkl").read_bytes())
    assert submitted.result() == "2"


def test_a_single_job_is_no_array(cluster, tmp_path):
    intent = new_intent(JOBS[:1], "pike-agent", 30, 0.0)
    write_intent(tmp_path, intent)
    cluster.put("names", f"{intent.name} 41\n")
    assert [record.job_id for record in settle(tmp_path, time.time())] == ["41"]


def test_what_slurm_never_had_is_forgotten(cluster, tmp_path, intent):
    assert settle(tmp_path, time.time()) == ()
    assert read_intents(tmp_path) == ()


def test_a_job_that_only_the_accounts_know_is_found(cluster, tmp_path, intent):
    cluster.program("sacct", f'case "$*" in *--name={intent.name}*) echo 41_1; echo 41_2;; esac')
    assert [record.job_id for record in settle(tmp_path, time.time())] == ["41_0", "41_1", "41_2"]


def test_jobs_on_record_are_not_recorded_again(cluster, tmp_path):
    SlurmLauncher(tmp_path, PARAMETERS).submit(JOBS)
    name = cluster.text("names").split()[0]
    intent = new_intent(JOBS, "pike-agent", 30, 0.0)
    write_intent(tmp_path, intent)
    cluster.put("names", f"{name} 1\n{intent.name} 1\n")
    assert settle(tmp_path, time.time()) == ()
    assert len(read_jobs(tmp_path)) == 3


@pytest.mark.parametrize("dead_for_s", [1.0, DEAD_FOR_S])
def test_nothing_is_guessed(cluster, tmp_path, dead_for_s):
    """Where Slurm is silent, or the call may still be under way."""
    write_intent(tmp_path, new_intent(JOBS, "pike-agent", 30, time.time() - dead_for_s))
    if dead_for_s == DEAD_FOR_S:
        cluster.put("squeue-down")
    with pytest.raises(TryAgainLater, match="cut short"):
        settle(tmp_path, time.time())
    assert len(read_intents(tmp_path)) == 1


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Batch job submission failed: Invalid qos specification", 0),
        ("Batch job submission failed: Socket timed out on send/recv operation", 1),
    ],
)
def test_a_refusal_leaves_an_intent_only_where_the_job_may_be_there(cluster, tmp_path, said, left):
    cluster.program("sbatch", f"echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(TryAgainLater):
        SlurmLauncher(tmp_path, PARAMETERS).submit(JOBS)
    assert len(read_intents(tmp_path)) == left
