"""Who drives a run, as `status` lists it."""

import itertools
from contextlib import ExitStack

from builders.simulated_run import make_run

from pike_hpc.cli.arrival import Arrival
from pike_hpc.cli.run import Run
from pike_hpc.cli.status import describe, document
from pike_hpc.journal import TaskJournal, task_slug
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
