"""A run looked at time and again: never other than the journals, and read where they grew."""

import itertools

import pytest
from builders.simulated_run import make_run
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pike_hpc.cli.watched import WatchedRun
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.records import Paused, TaskOpened

FEW = 'tasks: {suite: level0, ids: "1,2,3"}\nsearch: {strategy: rules}\n'


def write(run, task, *events):
    clock = itertools.count(1000.0)
    journal = TaskJournal.open(
        run.dir, task_slug(task.key), writer="w", seed=0, clock=lambda: next(clock)
    )
    for event in events:
        journal.append(event)
    journal.close()


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "a", FEW)


def test_only_the_task_whose_journal_grew_is_read_again(run):
    for task in run.tasks:
        write(run, task, TaskOpened(task=task, device_kind="simulated"))
    watched = WatchedRun.of(run)
    first, views = watched.journals(), watched.views()
    again = watched.journals()
    assert all(again[key] is events for key, events in first.items())
    write(run, run.tasks[0], Paused(reason="full", exit_code=0))
    again, later = watched.journals(), watched.views()
    grown, *others = (task.key for task in run.tasks)
    assert again[grown] == run.events(run.tasks[0])
    assert later[grown].paused == "full"
    assert all(again[key] is first[key] and later[key] is views[key] for key in others)


class Looks(RuleBasedStateMachine):
    """Journals grow, by one controller after another; each look is compared with a fresh one."""

    folder = None
    numbers = itertools.count()
    """Of runs: an id is given again as soon as a machine before this one is gone."""

    @initialize()
    def begin(self):
        self.run = make_run(type(self).folder / str(next(self.numbers)), FEW)
        self.watched = WatchedRun.of(self.run)

    @rule(which=st.integers(0, 2), count=st.integers(0, 3))
    def grow(self, which, count):
        write(self.run, self.run.tasks[which], *[Paused(reason="r", exit_code=0)] * count)

    @rule()
    def look(self):
        assert self.watched.views() == self.run.views()
        assert self.watched.journals() == {t.key: self.run.events(t) for t in self.run.tasks}
        assert self.watched.finished() == self.run.finished()
        task = self.run.tasks[0]
        assert self.watched.events(task) == self.run.events(task)


def test_a_look_never_differs_from_the_journals(tmp_path_factory):
    Looks.folder = tmp_path_factory.mktemp("looks")
    run_state_machine_as_test(Looks, settings=settings(max_examples=20, deadline=None))
