"""Who drives a run, as `status` lists it."""

import dataclasses
import itertools
import os
from contextlib import ExitStack

from builders.simulated_run import make_run

from pike_hpc.cli.arrival import Arrival
from pike_hpc.cli.file_age import FileAges
from pike_hpc.cli.run import Run
from pike_hpc.cli.status import describe, document
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.journal.holder import this_process, write_holder
from pike_hpc.mailbox import WorkerBeat
from pike_hpc.worker import WorkerOptions

TWO = 'tasks: {suite: level0, ids: "1,2"}\nsearch: {strategy: rules}\n'


def test_a_process_that_drives_several_tasks_is_one_agent(tmp_path):
    run = make_run(tmp_path / "here", TWO)
    ticks = itertools.count(1.0)
    with ExitStack() as held:
        for key in ("level0/1", "level0/2"):
            slug = task_slug(key)
            held.enter_context(
                TaskJournal.open(run.dir, slug, writer="one", seed=0, clock=lambda: next(ticks))
            )
        found = document(run, ())
    assert [agent["writer"] for agent in found["agents"]] == ["one"]
    assert describe(found).count(" process ") == 1


def test_looks_at_workers_leave_nothing_behind(tmp_path):
    run = make_run(tmp_path / "here", TWO)
    for worker_id in ("one", "two"):
        Arrival(run.mailbox, WorkerOptions(worker_id=worker_id), "cpu").at("try something")
    before = sorted((run.dir / "mailbox" / "tmp").iterdir())
    for _ in range(3):
        assert len(document(Run.open(run.dir), ())["workers"]) == 2
        assert len(document(run, ())["workers"]) == 2
    assert sorted((run.dir / "mailbox" / "tmp").iterdir()) == before == []


def test_a_run_has_one_mailbox(tmp_path):
    run = make_run(tmp_path / "here", TWO)
    assert run.mailbox is run.mailbox
    assert Run.open(run.dir) == run


def test_an_agent_is_alive_by_the_clock_of_the_file_system_not_by_ours(tmp_path):
    run = make_run(tmp_path / "here", TWO)
    locks = run.dir / "journal" / "locks"
    locks.mkdir(parents=True)
    elsewhere = dataclasses.replace(
        this_process("agent-other-7-1", 0.0), host="other", boot_id="other", pid=7
    )
    write_holder(locks / f"{task_slug(run.tasks[0].key)}.lock.holder", elsewhere)
    log = run.dir / "logs" / "agent-other-7-1.log"
    log.touch()
    os.utime(log, (1000.0, 1000.0))
    for now_s, state in ((1010.0, "alive"), (1130.0, "lost"), (None, "lost")):
        (agent,) = document(run, (), FileAges(run.dir, now_s))["agents"]
        assert agent["state"] == state
    assert not list(run.dir.glob(".pike-clock-*"))


def test_the_file_systems_time_is_read_off_it_and_else_is_ours(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (tmp_path, tmp_path / "nowhere"):
        age_s = FileAges(folder).age_s(file)
        assert age_s is not None
        assert 0 <= age_s < 60
    assert FileAges(tmp_path).age_s(tmp_path / "nothing") is None


def test_a_worker_is_shown_with_its_whole_host_name(tmp_path):
    run = make_run(tmp_path / "here", TWO)
    beat = WorkerBeat(
        worker_id="worker-gpu-node-17-9-1",
        host="gpu-node-17.lab.example",
        pid=9,
        start_token="1-1",
        counter=1,
        state="idle",
        device_kind="cpu",
        started_at=0.0,
    )
    run.mailbox.beat(beat)
    assert "1 alive; gpu-node-17 idle" in describe(document(run, ()))
