"""Who drives a run, as `status` lists it."""

import itertools
from contextlib import ExitStack

from builders.simulated_run import make_run

from pike_hpc.cli.status import describe, document
from pike_hpc.journal import TaskJournal, task_slug

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
