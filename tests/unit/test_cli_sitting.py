"""One sitting of an agent: whose time it counts against the wall budget, and what it leaves."""

import time

from builders.simulated_run import judge_all, make_run

from pike_hpc.agent import active_seconds
from pike_hpc.cli.sitting import Sitting
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.records import Finished, SearchEnded, TaskOpened

TIMED = """
tasks: {suite: level3-pike, ids: "4,13"}
search: {strategy: rules}
budget: {evaluations_per_task: 4, wall_minutes: 30}
"""


def used_up(run, task, seconds):
    """What another agent's journal of a task holds that took the whole wall budget."""
    now = [time.time() - seconds]
    slug = task_slug(task.key)
    journal = TaskJournal.open(run.dir, slug, writer="other", seed=0, clock=lambda: now[0])
    journal.append(TaskOpened(task=task, device_kind=run.device_kind))
    now[0] += seconds
    journal.append(SearchEnded(reason="the wall budget is used"))
    journal.append(Finished(reason="the wall budget is used"))
    journal.close()


def sit(run, tasks):
    sitting = Sitting(run, "me", tasks, None, lanes=1, max_s=0.0, once=False)
    return sitting.run(lambda _: judge_all(run) and None, lambda: False)


def test_a_later_agent_has_the_wall_budget_for_its_own_tasks(tmp_path):
    run = make_run(tmp_path / "a", TIMED)
    first, second = run.tasks
    used_up(run, first, 1800)
    assert active_seconds([run.events(first)]) >= 1800
    assert sit(run, [second]).exit_code == 0
    view = run.views()[second.key]
    assert "wall" not in view.finished
    assert (len(view.results), bool(view.retimed)) == (4, True)


def test_nor_does_it_pay_for_finished_tasks_that_it_is_given_too(tmp_path):
    run = make_run(tmp_path / "a", TIMED)
    used_up(run, run.tasks[0], 1800)
    assert sit(run, run.tasks).exit_code == 0
    assert len(run.views()[run.tasks[1].key].results) == 4
