"""An agent's look at the workers of its run, with Slurm's programs scripted."""

import itertools
import json

import pytest
from builders.slurm_run import SUBMIT, scripted_cluster

from pike_hpc.cli import main
from pike_hpc.cli.run import Run
from pike_hpc.cli.wave import Wave
from pike_hpc.records import EvalRequest


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return scripted_cluster(tmp_path, monkeypatch)


@pytest.fixture
def run(cluster, tmp_path, capsys):
    """Submitted; its workers have all left after a minute."""
    assert main(SUBMIT) == 0
    cluster.put("queue", "1_[0-3]|RUNNING|None\n")
    cluster.put("accounts", "2_0|COMPLETED\n2_1|COMPLETED\n2_2|COMPLETED\n")
    cluster.put("used", "".join(f"2_{n}|COMPLETED|60\n" for n in range(3)))
    return Run.open(tmp_path / "run")


def put_work(run, requests):
    for n in range(requests):
        run.mailbox.put(
            EvalRequest(
                task=run.tasks[0],
                candidate_source=f"x = {n}",
                device_kind=run.device_kind,
                image_digest="i",
            )
        )


def test_work_brings_workers_back(cluster, run):
    put_work(run, 9)
    started = Wave(run).look()
    assert [record.job_id for record in started] == ["3_0", "3_1", "3_2"]
    assert cluster.lines("submitted")[-1] == "pike-worker 0-2%3"
    script = (run.dir / "slurm" / "3_submission.sh").read_text()
    assert "#SBATCH --time=59\n" in script, "what the first used is gone"
    assert Wave(run).look() == (), "they wait in the queue now"


def test_a_single_request_brings_one(cluster, run):
    put_work(run, 1)
    assert [record.job_id for record in Wave(run).look()] == ["3"]


def test_without_work_slurm_is_not_even_asked(cluster, run):
    cluster.put("asked", "")
    assert Wave(run).look() == ()
    assert cluster.text("asked") == ""


def test_after_a_cancel_nobody_starts_any(cluster, run, capsys):
    put_work(run, 9)
    assert main(["cancel", "run"]) == 0
    assert Wave(run).look() == ()


def test_a_silent_slurm_is_asked_again_later(cluster, run, caplog):
    put_work(run, 9)
    wave = Wave(run)
    cluster.put("squeue-down")
    cluster.put("sacct-down")
    assert wave.look() == ()
    assert wave.look() == ()
    assert caplog.text.count("Slurm doesn't say which workers live") == 1
    cluster.drop("squeue-down")
    cluster.drop("sacct-down")
    assert len(wave.look()) == 3


def test_a_refusal_stops_no_search(cluster, run, caplog):
    put_work(run, 9)
    cluster.put("full")
    assert Wave(run).look() == ()
    assert "QOSMaxSubmitJobPerUserLimit" in caplog.text


def test_it_looks_now_and_then_and_passes_on_whether_to_stop(cluster, run):
    now = [0.0]
    wave = Wave(run, clock=lambda: now[0])
    stopping = wave.watching(lambda: now[0] > 40)
    put_work(run, 1)
    assert stopping() is False
    assert len(cluster.lines("submitted")) == 2
    now[0] = 30.0
    assert stopping() is False
    assert len(cluster.lines("submitted")) == 3
    now[0] = 41.0
    assert stopping() is True


def test_workers_that_come_to_nothing_are_started_ever_more_seldom(cluster, run):
    """They leave by plan, without a verdict, while work waits: their walltime is too short."""
    now = [0.0]
    wave = Wave(run, clock=lambda: now[0])
    stopping = wave.watching(lambda: False)
    put_work(run, 1)
    at = []
    for now[0] in range(0, 1200, 10):
        stopping()
        jobs = len(cluster.lines("submitted"))
        if jobs > 2 + len(at):
            at.append(now[0])
            cluster.put("queue", "1_[0-3]|RUNNING|None\n")
            over = [f"2_{n}" for n in range(3)] + [str(n) for n in range(3, jobs + 1)]
            cluster.put("used", "".join(f"{n}|COMPLETED|1\n" for n in over))
            cluster.put("accounts", "".join(f"{n}|COMPLETED\n" for n in over))
    pauses = [b - a for a, b in itertools.pairwise(at)]
    assert len(pauses) >= 4
    assert all(b > 1.3 * a for a, b in itertools.pairwise(pauses[1:])), pauses


def test_each_look_is_a_sign_of_life(cluster, run, tmp_path):
    log = tmp_path / "agent.log"
    now = [0.0]
    stopping = Wave(run, log, clock=lambda: now[0]).watching(lambda: False)
    stopping()
    assert not log.exists()
    now[0] = 60.0
    stopping()
    assert log.exists()


def test_the_next_submit_grants_anew(cluster, run, capsys):
    cluster.put("used", "".join(f"2_{n}|COMPLETED|3600\n" for n in range(3)))
    put_work(run, 9)
    assert Wave(run).look() == ()
    assert main(["status", "run"]) == 0
    assert "no worker is started: the node-hours granted are used" in capsys.readouterr().out
    grant = json.loads((run.dir / "slurm" / "grant.json").read_text())
    assert grant["node_hours"] == 3.0
    assert main(SUBMIT) == 0
    assert cluster.lines("submitted")[-1] == "pike-worker 0-2%3"
