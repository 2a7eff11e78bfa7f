"""What a follower starts, and when: nothing twice, and no worker that nobody needs."""

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from pike_hpc.cli.processes import LocalJobs, agents_of, announce_cancel, leave_s, pids_of, stop
from pike_hpc.cli.run import Run, tasks_of, wait_for
from pike_hpc.cli.starting import BEGIN_S, all_unshown, unshown
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.journal.holder import this_process, write_holder
from pike_hpc.launch import Job, JobRecord
from pike_hpc.launch.jobs import append_jobs
from pike_hpc.machine import start_ticks, start_token
from pike_hpc.mailbox import WorkerBeat, host_name
from pike_hpc.records import EvalRequest, Finished
from pike_hpc.worker import WorkerOptions

WORKFLOW = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
"""


class NotedLauncher:
    """Starts nothing; what it was asked to start. `run_dir`: it records this process as the job."""

    def __init__(self, run_dir=None):
        self.started, self.run_dir = [], run_dir

    def submit(self, jobs):
        self.started += [job.kind for job in jobs]
        if self.run_dir is not None:
            append_jobs(self.run_dir, tuple(record(job.kind, os.getpid()) for job in jobs))
        return ()


def record(kind, pid, submitted_at=None, process=None):
    return JobRecord(
        job_id=str(pid),
        kind=kind,
        name=kind,
        launcher="local",
        host=socket.gethostname(),
        submitted_at=time.time() if submitted_at is None else submitted_at,
        argv=("x",),
        process=start_token(pid) if process is None else process,
    )


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(WORKFLOW)
    resolved = resolve(path, "local", environ={}, sites_dir=sites_dir({}), user_config_dir=tmp_path)
    return Run.create(tmp_path / "run", resolved, tasks_of(resolved)[0])


def follow(run, launcher=None, kinds=("worker", "agent")):
    now, launcher = [0.0], launcher or NotedLauncher()
    jobs = [(Job(kind=kind, name=kind, argv=("true",)),) for kind in kinds]
    plan = (jobs[0], jobs[1] if len(jobs) > 1 else ())
    return LocalJobs(run, launcher, plan, clock=lambda: now[0]), launcher, now


HELD = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()  # as a trial's sandbox does
os.write(1, b"%d\\n" % os.getpid())
signal.pause()
"""
"""A job that neither shows itself nor leaves, with a process below it in another session."""


@pytest.fixture
def held():
    """Such a job's process; its own pid and the one below."""
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as job:
        pids = {job.pid}
        try:
            pids |= {int(job.stdout.readline()) for _ in range(2)}
            yield job, pids
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def beat(state, phase, pid=None, name="slow"):
    pid = os.getpid() if pid is None else pid
    return WorkerBeat(
        **dict(worker_id=name, host=host_name(), pid=pid, start_token=start_token(pid)),
        **dict(counter=0, state=state, phase=phase, device_kind="cpu", started_at=0.0),
    )


def test_a_worker_whose_process_lives_is_not_gone(run, held, capsys):
    """Slow or hanging: no other is started, and what it hangs in is said once, in the end."""
    job, _ = held
    jobs, launcher, now = follow(run, kinds=("worker",))
    put_work(run)
    assert jobs.keep_going() == 0
    append_jobs(run.dir, (record("worker", job.pid),))
    while now[0] < 0.9 * BEGIN_S:
        now[0] += 30.0
        assert jobs.keep_going() == 0
    assert launcher.started.count("worker") == 1
    assert capsys.readouterr().err == ""
    now[0] += 0.2 * BEGIN_S
    assert jobs.keep_going() == 1
    said = capsys.readouterr().err
    assert "worker lives and has not shown itself for 10 minutes" in said
    assert f"{job.pid}_0_log.out" in said
    assert "pike-hpc doctor" in said


def test_what_a_worker_hangs_in_is_said(run, held, capsys):
    job, _ = held
    jobs, launcher, now = follow(run, kinds=("worker",))
    put_work(run)
    append_jobs(run.dir, (record("worker", job.pid),))
    run.mailbox.beat(beat("starting", "trial of its sandbox (engine auto)", job.pid))
    codes = []
    while not any(codes) and now[0] < 2 * BEGIN_S:
        codes.append(jobs.keep_going())
        now[0] += 30.0
    assert codes[-1] == 1
    assert "worker" not in launcher.started
    said = capsys.readouterr().err
    assert "it hangs in the trial of its sandbox (engine auto)" in said
    assert "slow.log" in said
    assert "pike-hpc doctor" in said


@pytest.mark.parametrize("shows_itself", [False, True])
def test_one_worker_that_hangs_ends_no_run_in_which_another_judges(run, held, capsys, shows_itself):
    job, _ = held
    jobs, _, now = follow(run, kinds=("worker",))
    put_work(run)
    records = (record("worker", job.pid), record("worker", os.getpid()))
    append_jobs(run.dir, records)
    mailbox = run.mailbox
    mailbox.beat(beat("judging", "", name="quick"))
    if shows_itself:
        mailbox.beat(beat("starting", "trial of its sandbox", job.pid))
    while now[0] < 2 * BEGIN_S:
        assert jobs.keep_going() == 0
        now[0] += 30.0
    said = capsys.readouterr().err
    assert said.count("for 10 minutes") == 1
    assert "the run goes on: another worker is at work" in said
    mailbox.beat(beat("starting", "trial of its sandbox", name="quick"))
    assert jobs.keep_going() == 1
    assert "for 10 minutes" in capsys.readouterr().err


def test_a_worker_at_work_was_never_late(run, capsys):
    jobs, _, now = follow(run, kinds=("worker",))
    put_work(run)
    mailbox = run.mailbox
    for state in ("starting", "judging", "starting"):
        mailbox.beat(beat(state, "x"))
        assert jobs.keep_going() == 0
        now[0] += 0.8 * BEGIN_S
    assert "hangs" not in capsys.readouterr().err


@pytest.mark.parametrize("shows_itself", [False, True])
def test_none_that_hangs_is_left_behind(run, held, shows_itself):
    """Nor what it started in another session."""
    job, pids = held
    append_jobs(run.dir, (record("worker", job.pid),))
    if shows_itself:
        run.mailbox.beat(beat("starting", "trial of its sandbox", job.pid))
    assert stop(run, starts_s=0.5, leaves_s=0.5) == 1
    assert job.wait(10) == -signal.SIGKILL
    assert wait_for(lambda: all(start_ticks(pid) is None for pid in pids), 10)


def test_a_pid_that_is_used_again_is_no_job_of_ours(run, held):
    job, _ = held
    place, _, ticks = start_token(job.pid).rpartition("-")
    earlier = f"{place}-{int(ticks) - 1}"
    append_jobs(run.dir, (record("worker", job.pid, process=earlier),))
    jobs, launcher, _ = follow(run)
    jobs.keep_going()
    assert launcher.started == ["worker", "agent"]


def elsewhere(token):
    """The same start, in a container on a machine of the same name."""
    return token.replace("pid:[", "pid:[9")


def test_a_pid_of_a_container_is_no_process_out_here(run, held):
    job, _ = held
    token = elsewhere(start_token(job.pid))
    assert token != start_token(job.pid)
    append_jobs(run.dir, (record("worker", job.pid, process=token),))
    assert stop(run, starts_s=0.5, leaves_s=0.5) == 0
    assert job.poll() is None


def test_nor_is_that_of_an_agent_there(run, held):
    job, _ = held
    agent = dataclasses.replace(
        this_process("agent", 0.0), pid=job.pid, start_ticks=start_ticks(job.pid)
    )
    lock = run.dir / "journal" / "locks" / f"{task_slug(run.tasks[0].key)}.lock.holder"
    lock.parent.mkdir(parents=True, exist_ok=True)
    write_holder(lock, agent)
    assert pids_of(run) == (job.pid,)
    for other in (
        {"pid_namespace": elsewhere(agent.pid_namespace)},
        {"boot_id": "another"},
        {"host": "another"},
    ):
        write_holder(lock, dataclasses.replace(agent, **other))
        assert pids_of(run) == ()
        assert agents_of(run), "it may live, there"


def test_a_record_of_an_older_version_counts_while_its_job_starts(run, held):
    job, _ = held
    append_jobs(run.dir, (record("worker", job.pid, process=""),))
    assert [one.job_id for one in all_unshown(run)] == [str(job.pid)]
    append_jobs(run.dir, (record("agent", job.pid, time.time() - 30, process=""),))
    assert unshown(run, "agent") == ()


def test_such_a_record_is_of_no_process_that_began_long_before(run):
    append_jobs(run.dir, (record("worker", 1, process=""),))
    assert all_unshown(run) == ()


def test_one_that_may_not_be_signalled_keeps_no_other_alive(run, held, monkeypatch):
    job, pids = held
    append_jobs(run.dir, (record("worker", job.pid),))
    kill, refused = os.kill, []

    def other_user(pid, number):
        if pid == job.pid and number == signal.SIGTERM:
            refused.append(pid)
            raise PermissionError(errno.EPERM, "not permitted")
        kill(pid, number)

    monkeypatch.setattr(os, "kill", other_user)
    assert stop(run, starts_s=0.5, leaves_s=0.5) == 1
    assert refused == [job.pid]
    assert wait_for(lambda: all(start_ticks(pid) is None for pid in pids), 10)


def test_what_somebody_starts_meanwhile_is_let_be(run, held, monkeypatch):
    """As who resumes a run while its last follower still stops it."""
    job, pids = held
    append_jobs(run.dir, (record("worker", job.pid),))
    kill = os.kill
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as resumed:

        def start_another(pid, number):
            if number == signal.SIGTERM:
                append_jobs(run.dir, (record("worker", resumed.pid),))
                run.mailbox.beat(beat("judging", "", resumed.pid, name="resumed"))
            kill(pid, number)

        monkeypatch.setattr(os, "kill", start_another)
        assert stop(run, starts_s=0.5, leaves_s=0.5) == 1
        monkeypatch.undo()
        assert wait_for(lambda: all(start_ticks(pid) is None for pid in pids), 10)
        assert resumed.poll() is None


def put_work(run):
    request = EvalRequest(
        task=run.tasks[0], candidate_source="x = 1", device_kind="cpu", image_digest="test"
    )
    run.mailbox.put(request)


def test_workers_start_with_the_agent(run):
    jobs, launcher, _ = follow(run)
    assert jobs.keep_going() == 0
    assert launcher.started == ["worker", "agent"]
    assert jobs.keep_going() == 0
    assert launcher.started == ["worker", "agent"], "they have not had the time to show themselves"


def test_a_second_follower_starts_nothing_that_the_first_has_just_started(run):
    first, launcher, _ = follow(run, NotedLauncher(run.dir))
    second, other, _ = follow(run)
    first.keep_going()
    second.keep_going()
    assert launcher.started == ["worker", "agent"]
    assert other.started == []


def test_jobs_that_have_ended_already_are_started_again(run):
    append_jobs(run.dir, tuple(record(kind, 2**22 + 1) for kind in ("worker", "agent")))
    jobs, launcher, _ = follow(run)
    jobs.keep_going()
    assert launcher.started == ["worker", "agent"]


def test_an_agent_that_finished_between_two_looks_is_not_missed(run, capsys):
    jobs, launcher, now = follow(run)
    jobs.keep_going()
    now[0] = 60.0
    slug = task_slug(run.tasks[0].key)
    with TaskJournal.open(run.dir, slug, writer="a", seed=1, clock=time.time) as journal:
        journal.append(Finished(reason="budget"))
    assert jobs.keep_going() == 0
    assert launcher.started.count("agent") == 1
    assert "gone" not in capsys.readouterr().err


def test_a_worker_that_left_for_lack_of_work_comes_back_with_work(run):
    jobs, launcher, now = follow(run)
    jobs.keep_going()
    now[0] = 60.0
    jobs.keep_going()
    assert launcher.started.count("worker") == 1
    put_work(run)
    jobs.keep_going()
    assert launcher.started.count("worker") == 2


def test_a_worker_that_keeps_dying_ends_the_run(run, capsys):
    jobs, launcher, now = follow(run)
    put_work(run)
    codes = []
    while not any(codes) and len(codes) < 20:
        codes.append(jobs.keep_going())
        now[0] += 60.0
    assert codes[-1] == 1
    assert launcher.started.count("worker") <= 7
    assert "died 5 times" in capsys.readouterr().err


OUTPUT = """submitit INFO - Loading pickle
pike-hpc: Read-only file system
  where: /tmp/pike-1
  next:  name another file or folder
submitit ERROR - Submitted job triggered an exception
subprocess.CalledProcessError: Command '[...]' returned non-zero exit status 2.
"""


def test_a_worker_that_says_why_it_cannot_work_is_not_started_again(run, capsys):
    jobs, launcher, now = follow(run)
    jobs.keep_going()
    put_work(run)
    append_jobs(run.dir, (record("worker", 7, submitted_at=0.0, process=""),))
    (run.dir / "slurm" / "7_0_log.out").write_text(OUTPUT)
    now[0] = 60.0
    assert jobs.keep_going() == 2
    assert launcher.started.count("worker") == 1
    said = capsys.readouterr().err
    assert "Read-only file system\n  where: /tmp/pike-1" in said
    assert "submitit" not in said


LATE = """
import os, sys, time
from pathlib import Path
from pike_hpc.machine import start_token
from pike_hpc.mailbox import FileMailbox, WorkerBeat, host_name
print("started", flush=True)
sys.stdin.readline()
time.sleep(1)  # it imports, tries its sandbox
beat = WorkerBeat(worker_id="late", host=host_name(), pid=os.getpid(), start_token=start_token(),
                  counter=1, state="idle", device_kind="cpu", started_at=0.0)
FileMailbox(Path(sys.argv[1])).beat(beat)
time.sleep(60)
"""


def test_a_worker_that_is_just_starting_is_stopped_too(run):
    argv = [sys.executable, "-c", LATE, str(run.mailbox.root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as late:
        try:
            assert late.stdout.readline() == "started\n"
            append_jobs(run.dir, (record("worker", late.pid),))
            late.stdin.write("go on\n")
            late.stdin.flush()
            assert stop(run) == 1
            assert late.wait(10) == -signal.SIGTERM
        finally:
            late.kill()


def test_a_worker_that_drains_is_not_killed():
    """Its claim would be left, and count as a death of the program that it judges."""
    assert WorkerOptions(worker_id="w").drain_s + 5 < leave_s()


def test_who_follows_a_cancelled_run_leaves_and_starts_nothing(run, capsys):
    before, launcher, _ = follow(run)
    announce_cancel(run)
    after, later, _ = follow(run)
    assert before.keep_going() == 130
    assert f"continue with: pike-hpc resume {run.dir}" in capsys.readouterr().err
    assert launcher.started == []
    assert after.keep_going() == 0
    assert later.started == ["worker", "agent"]
    announce_cancel(run)
    assert after.keep_going() == 130


def test_nothing_is_started_once_a_run_is_cancelled_during_a_look(run):
    class Cancelled(NotedLauncher):
        def submit(self, jobs):
            super().submit(jobs)
            announce_cancel(run)

    keeper, launcher, _ = follow(run, Cancelled())
    assert keeper.keep_going() == 0
    assert launcher.started == ["worker"], "cancelled before the agent's turn"


def test_a_disk_that_takes_no_mark_keeps_nobody_from_cancelling(run, capsys):
    (run.dir / "slurm").write_text("no folder")
    announce_cancel(run)
    assert "may start jobs again" in capsys.readouterr().err
