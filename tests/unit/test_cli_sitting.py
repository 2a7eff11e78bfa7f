"""One sitting of an agent: whose time it counts against the wall budget, and what it leaves."""

import dataclasses
import time

from builders.simulated_run import judge_all, make_run

from pike_hpc.agent import active_seconds
from pike_hpc.cli.run import Run
from pike_hpc.cli.sitting import Sitting
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.records import Finished, SearchEnded, TaskOpened

TIMED = """
tasks: {suite: level3-pike, ids: "4,13"}
search: {strategy: rules}
budget: {evaluations_per_task: 4, wall_minutes: 30}
"""
ONE = """
tasks: {suite: level0, ids: "1"}
search: {strategy: rules}
budget: {evaluations_per_task: 1}
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


def at_slurm(run, keep):
    """The same run at a site with Slurm that keeps runs."""
    site = run.resolved.site
    paths = dataclasses.replace(site.paths, keep=str(keep))
    site = dataclasses.replace(site, scheduler="slurm", paths=paths)
    return Run(run.dir, dataclasses.replace(run.resolved, site=site), run.tasks)


def test_on_slurm_the_last_agent_copies_the_run_once_it_has_its_archive(tmp_path):
    run = at_slurm(make_run(tmp_path / "a", ONE), tmp_path / "kept")
    assert sit(run, run.tasks).finished
    kept = tmp_path / "kept" / run.dir.name
    assert {p.name for p in kept.iterdir()} >= {"run.yaml", "journal", "archive.h5", "code"}
    made = kept.stat().st_ino
    assert sit(run, run.tasks).finished
    assert kept.stat().st_ino == made, "a tick that finds it there copies nothing"


def test_a_copy_that_failed_is_tried_again_by_the_next_look(tmp_path, capsys):
    (tmp_path / "kept").write_text("a file")
    run = at_slurm(make_run(tmp_path / "a", ONE), tmp_path / "kept")
    assert sit(run, run.tasks).finished
    assert "was not copied" in capsys.readouterr().err
    (tmp_path / "kept").unlink()
    assert sit(run, run.tasks).finished
    assert (tmp_path / "kept" / run.dir.name / "archive.h5").exists()


def test_an_unfinished_run_is_not_copied(tmp_path):
    run = at_slurm(make_run(tmp_path / "a", ONE), tmp_path / "kept")
    sitting = Sitting(run, "me", run.tasks, None, lanes=1, max_s=0.0, once=True)
    assert not sitting.run(lambda _: None, lambda: False).finished
    assert not (tmp_path / "kept").exists()
