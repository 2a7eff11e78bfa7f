"""`submit`, `status` and `cancel` of a run on Slurm, with Slurm's programs scripted."""

import dataclasses
import json
import os
import re
import time

import pytest
from builders.slurm_run import SUBMIT, scripted_cluster

from pike_hpc.cli import main
from pike_hpc.cli.processes import start_lock
from pike_hpc.cli.run import Run
from pike_hpc.journal import LockKind, WriterLock, task_slug
from pike_hpc.journal.holder import this_process, write_holder
from pike_hpc.mailbox import WorkerBeat


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return scripted_cluster(tmp_path, monkeypatch)


@pytest.fixture
def pike(capsys):
    def run(*arguments):
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return run


def test_a_second_submit_starts_nothing_and_says_what_is_there(cluster, pike):
    code, started, _ = pike(*SUBMIT)
    assert code == 0
    assert started == [f"agent job 1_{n}" for n in range(4)] + [
        f"worker job 2_{n}" for n in range(3)
    ]
    assert cluster.lines("submitted") == ["pike-agent 0-3%4", "pike-worker 0-2%3"]
    code, started, said = pike(*SUBMIT)
    assert (code, started) == (0, [])
    assert "agent job 1_0 is there: PENDING (Priority)" in said
    assert "worker job 2_2 is there: PENDING (Priority)" in said
    assert "nothing is started" in said
    assert len(cluster.lines("submitted")) == 2


def test_agents_run_as_many_at_a_time_as_the_site_says_and_workers_all(cluster, pike):
    assert pike(*SUBMIT, "--set", "agent.at_once=2")[0] == 0
    assert cluster.lines("submitted") == ["pike-agent 0-3%2", "pike-worker 0-2%3"]


def test_only_what_is_missing_is_started(cluster, pike):
    pike(*SUBMIT)
    cluster.put("queue", "1_[0,2]|PENDING|Priority\n1_1|RUNNING|None\n2_1|RUNNING|None\n")
    cluster.put("accounts", "1_3|TIMEOUT\n2_0|COMPLETED\n2_2|NODE_FAIL\n")
    code, started, _ = pike(*SUBMIT)
    assert (code, started) == (0, ["agent job 3", "worker job 4_0", "worker job 4_1"])
    assert pike(*SUBMIT)[1] == []


def test_nothing_that_may_live_is_started_where_slurm_is_silent(cluster, pike):
    pike(*SUBMIT)
    cluster.put("squeue-down")
    cluster.put("sacct-down")
    code, started, said = pike(*SUBMIT)
    assert (code, started) == (75, [])
    assert "agent job 1_0 may still live, Slurm doesn't say" in said
    assert any("neither squeue nor sacct says whether 7 jobs" in line for line in said)
    cluster.put("accounts", "1_0|TIMEOUT\n")
    cluster.drop("sacct-down")
    code, started, _ = pike(*SUBMIT)
    assert (code, started) == (75, ["agent job 3"]), "the accounts know that this one has ended"


def test_arrays_are_no_longer_than_the_site_allows(cluster, pike):
    cluster.put("array-size", "3\n")
    _, plan, _ = pike(*SUBMIT, "--dry-run")
    assert [line for line in plan if "--array=" in line] == ["#SBATCH --array=0-2%3"] * 2
    code, started, _ = pike(*SUBMIT)
    assert code == 0
    assert cluster.lines("submitted") == ["pike-agent 0-2%3", "pike-agent ", "pike-worker 0-2%3"]
    assert started[:4] == ["agent job 1_0", "agent job 1_1", "agent job 1_2", "agent job 2"]


def test_the_dry_run_of_a_run_shows_what_it_lacks_and_writes_nothing(cluster, pike):
    pike(*SUBMIT)
    cluster.put("queue", "1_[0,2,3]|RUNNING|None\n2_[0-2]|RUNNING|None\n")
    before = sorted(p for p in cluster.folder.parent.rglob("*") if p.is_file())
    code, plan, _ = pike(*SUBMIT, "--dry-run")
    assert code == 0
    assert [line for line in plan if "job(s)" in line] == ["# 0 worker job(s)", "# 1 agent job(s)"]
    assert [line for line in plan if " agent " in line][-1].endswith("--tasks 2")
    assert sorted(p for p in cluster.folder.parent.rglob("*") if p.is_file()) == before


def test_a_submit_cut_short_is_gone_on_with(cluster, pike):
    """By a kill between sbatch and the record; the next is far enough away in time."""
    script = (cluster.programs / "sbatch").read_text()
    cluster.program("sbatch", f"{script}\necho 'sbatch: error: Socket timed out' >&2; exit 1")
    assert pike(*SUBMIT)[0] == 75
    cluster.program("sbatch", script)
    code, started, said = pike(*SUBMIT)
    assert code == 0
    assert "agent job 1_3 was submitted by one that died: it is taken over" in said
    assert started == [f"worker job 2_{n}" for n in range(3)]


def test_the_node_hours_of_a_workflow_bound_the_first_workers(cluster, pike):
    """The site's walltime is an hour: 20 minutes for each of three."""
    hours = ("--set", "workers.max_node_hours=1")
    code, plan, said = pike(*SUBMIT, *hours, "--dry-run")
    assert code == 0
    assert "# ceiling: 1 node-hours for 3 workers, 96 job-hours of 1 CPUs for 4 agents" in plan[2]
    assert plan[plan.index("# 3 worker job(s)") :].count("#SBATCH --time=20") == 1
    code, started, said = pike(*SUBMIT, "--set", "workers.max_node_hours=0")
    assert [line.split()[0] for line in started] == ["agent"] * 4
    assert any(line.startswith("no worker is started: the node-hours") for line in said)


def test_what_was_taken_before_a_refusal_is_known_to_the_next_submit(cluster, pike):
    cluster.put("array-size", "2\n")
    cluster.program(
        "sbatch",
        f"cd '{cluster.folder}'\n[ $(wc -l < submitted) -ge 1 ] && touch full\n"
        + (cluster.programs / "sbatch").read_text(),
    )
    assert pike(*SUBMIT)[0] == 75
    cluster.program("sbatch", (cluster.programs / "sbatch").read_text().replace("touch full", ":"))
    cluster.drop("full")
    code, started, _ = pike(*SUBMIT)
    assert code == 0
    assert [line.split()[0] for line in started] == ["agent"] * 2 + ["worker"] * 3


@pytest.fixture(params=list(LockKind))
def starting(request, tmp_path):
    """`starting(since)`: somebody starts jobs of the run, where locks are had by either way."""

    def hold(since):
        (tmp_path / "run/slurm/locks").mkdir(parents=True)
        (tmp_path / "run/slurm/locks/.kind").write_text(request.param.value)
        return WriterLock.take(start_lock(tmp_path / "run"), writer="it", clock=lambda: since)

    return hold


def test_two_submits_at_once_do_not_both_start(cluster, pike, starting):
    with starting(time.time()):
        code, started, said = pike(*SUBMIT)
    assert (code, started) == (75, [])
    assert any("another submit of this run is at work" in line for line in said)
    assert pike(*SUBMIT)[1][0] == "agent job 1_0"


def test_a_start_that_takes_minutes_is_named(cluster, pike, starting):
    with starting(time.time() - 3600):
        code, started, said = pike(*SUBMIT)
    assert (code, started) == (75, [])
    assert any(f"minutes: locked by it (process {os.getpid()} on " in line for line in said)
    assert any("if not: rm -r " in line for line in said)


def test_a_claim_whose_holder_left_no_name_is_told_by_its_age(cluster, pike, tmp_path):
    """As when its node died before the name was on the disk."""
    (tmp_path / "run/slurm/locks").mkdir(parents=True)
    (tmp_path / "run/slurm/locks/.kind").write_text("claims")
    path = start_lock(tmp_path / "run")
    with WriterLock.take(path, writer="it", clock=time.time):
        path.with_name("start.holder").unlink()
        said = pike(*SUBMIT)[2]
        assert any("another submit of this run is at work" in line for line in said)
        for claim in path.with_name("start.filelock").glob("claims/*"):
            os.utime(claim, (time.time() - 3600,) * 2)
        code, _, said = pike(*SUBMIT)
    assert code == 75
    assert any("minutes: locked by a process that left no name" in line for line in said)


def test_a_full_disk_is_no_other_submit(cluster, pike, tmp_path):
    (tmp_path / "run/slurm").mkdir(parents=True)
    (tmp_path / "run/slurm/locks").write_text("")  # a file: no lock can be made there
    code, started, said = pike(*SUBMIT)
    assert started == []
    assert code in (2, 75)
    assert not any("another submit" in line for line in said)
    assert any("cannot take the lock" in line for line in said)


def status(pike):
    code, out, _ = pike("status", "run", "--json")
    assert code == 0
    found = json.loads("\n".join(out))
    return found, {job["job_id"]: (job["state"], job["alive"]) for job in found["jobs"]}


def test_status_shows_what_slurm_knows(cluster, pike):
    pike(*SUBMIT)
    cluster.put("queue", "1_[1-3%4]|PENDING|Priority\n1_0|RUNNING|None\n")
    cluster.put("accounts", "2_0|OUT_OF_MEMORY\n")
    found, jobs = status(pike)
    assert found["state"] == "running"
    assert (jobs["1_0"], jobs["1_1"]) == (("RUNNING", True), ("PENDING", True))
    assert (jobs["2_0"], jobs["2_1"]) == (("OUT_OF_MEMORY", False), ("GONE", False))
    _, lines, _ = pike("status", "run")
    assert "  slurm    agent jobs: 1 RUNNING, 3 PENDING (Priority)" in lines


def test_status_shows_what_a_failed_job_said(cluster, pike, tmp_path):
    pike(*SUBMIT)
    cluster.put("queue", "1_[0-3]|RUNNING|None\n")
    cluster.put("accounts", "2_0|FAILED\n2_1|COMPLETED\n2_2|FAILED\n")
    (tmp_path / "run/slurm/2_2_0_log.out").write_text(
        "pike-hpc: no image \x1b[31mhere\n  where: container.image\n\nsubmitit: x\n"
        "CalledProcessError: Command returned non-zero exit status 2.\n"
    )
    _, lines, _ = pike("status", "run")
    said = "worker job 2_2 failed: no image here where: container.image"
    assert said in [line.strip() for line in lines]
    assert status(pike)[0]["notes"] == [said]


def test_status_says_that_the_node_of_a_failed_job_without_a_log_may_not_see_the_run(
    cluster, pike, tmp_path
):
    pike(*SUBMIT)
    cluster.put("queue", "1_0|FAILED|RaisedSignal:53(Real-time_signal_19)\n1_[1-3]|PENDING|None\n")
    cluster.put("accounts", "2_0|CANCELLED\n2_1|NODE_FAIL\n2_2|FAILED\n")
    hint = (
        f"failed and left no log: its node may not see {tmp_path / 'run'}; "
        "to find out: pike-hpc doctor --site here"
    )
    assert status(pike)[0]["notes"] == [f"agent job 1_0 {hint}", f"worker job 2_2 {hint}"]
    assert f"           worker job 2_2 {hint}" in pike("status", "run")[1]
    for job in ("1_0", "2_2"):  # a job that Slurm could begin has a file, however little it said
        (tmp_path / f"run/slurm/{job}_0_log.out").touch()
    assert status(pike)[0]["notes"] == []


def test_status_is_right_without_any_daemon(cluster, pike):
    pike(*SUBMIT)
    cluster.put("squeue-down")
    cluster.put("sacct-down")
    found, jobs = status(pike)
    assert found["state"] == "paused", "no controller has shown itself"
    assert set(jobs.values()) == {("UNKNOWN", None)}
    _, lines, _ = pike("status", "run")
    assert "  slurm    agent jobs: 4 UNKNOWN (squeue gave no answer)" in lines


@pytest.mark.parametrize(
    ("queue", "accounts", "age_s", "state"),
    [
        ("2_0|RUNNING|None", "", 1, "judging"),
        ("2_0|RUNNING|None", "", 500, "silent"),
        ("", "2_0|NODE_FAIL", 1, "lost"),
        ("2_0|PENDING|BeginTime", "", 500, "lost"),
        ("2_0|COMPLETING|None", "", 1, "judging"),
        (None, "2_0|RUNNING", 1, "judging"),
        (None, "2_0|TIMEOUT", 1, "lost"),
        (None, None, 1, "judging"),
        (None, None, 500, "lost"),
    ],
)
def test_a_worker_elsewhere_is_what_slurm_and_its_last_beat_tell_together(
    cluster, pike, tmp_path, queue, accounts, age_s, state
):
    """With both of Slurm's daemons, with either alone, and with none."""
    pike(*SUBMIT)
    for program, name, said in (("squeue", "queue", queue), ("sacct", "accounts", accounts)):
        cluster.put(*([f"{program}-down"] if said is None else [name, f"{said}\n"]))
    box = Run.open(tmp_path / "run").mailbox
    beat = WorkerBeat(
        **{"worker_id": "worker-there-7-1", "host": "there", "pid": 7, "start_token": "1-1"},
        **{"counter": 1, "job": "2_0.0", "state": "judging", "device_kind": "k", "started_at": 0.0},
    )
    box.beat(beat)
    (file,) = (tmp_path / "run/mailbox/workers").iterdir()
    os.utime(file, (time.time() - age_s,) * 2)
    (worker,) = status(pike)[0]["workers"]
    assert worker["state"] == state
    said = pike("status", "run")[1]
    assert (f"; there {state}" in " ".join(said)) is (state != "lost")


@pytest.mark.parametrize("where", ["array", "shell"])
def test_an_agent_on_another_node_is_at_work_while_it_gives_signs_of_life(
    cluster, pike, tmp_path, where
):
    """Its lock can't be looked into from here: started by hand, or by a shell elsewhere."""
    pike(*SUBMIT, "--set", f"agent.where={where}")
    cluster.put("queue", "")
    cluster.put("accounts", "".join(f"1_{n}|TIMEOUT\n" for n in range(4)))
    run = Run.open(tmp_path / "run")
    locks = run.dir / "journal" / "locks"
    locks.mkdir(parents=True)
    me = this_process("agent-other-7-1", 0.0)
    other = dataclasses.replace(me, host="other", boot_id="other", pid=7)
    write_holder(locks / f"{task_slug(run.tasks[0].key)}.lock.holder", other)
    assert state_and_agents(pike) == ("paused", [("lost", None)])
    assert "  agents   other process 7 lost" in pike("status", "run")[1]
    log = run.dir / "logs" / "agent-other-7-1.log"
    log.touch()
    assert state_and_agents(pike) == ("running", [("alive", 0)])
    said = "\n".join(pike("status", "run")[1])
    assert re.search(r"^  agents   other process 7 alive \(\d s ago\)$", said, re.M)
    os.utime(log, (0, 0))
    state, ((found, age_s),) = state_and_agents(pike)
    assert (state, found) == ("paused", "lost")
    assert age_s > 1e9


def state_and_agents(pike):
    found, _ = status(pike)
    ages = [agent["heartbeat_age_s"] for agent in found["agents"]]
    whole = [None if age is None else int(age) for age in ages]
    return found["state"], [(a["state"], n) for a, n in zip(found["agents"], whole, strict=True)]


def test_the_ceiling_is_told_before_slurm_refuses_and_only_once(cluster, pike):
    script = (cluster.programs / "sbatch").read_text()
    cluster.program("sbatch", "echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    code, _, said = pike(*SUBMIT)
    assert code == 2
    assert said[0].startswith("ceiling: ")
    assert "Invalid qos specification" in said[1]
    cluster.program("sbatch", script)
    for _ in range(2):
        code, _, said = pike(*SUBMIT)
        assert code == 0
        assert sum(line.startswith("ceiling: ") for line in said) == 1
