"""`pike-hpc agent --once` does what is ready and leaves: any number of times, also side by side.

Real processes on a real mailbox and real journals; the verdicts are made up.
"""

import json
import subprocess
import sys
from collections import Counter

import pytest
from builders.simulated_run import judge_all, make_run, start_agent

from pike_hpc.journal import TaskJournal, read_task, task_slug
from pike_hpc.records import Evaluated, QueryAnswered, QueryReserved, Requested

RULES = """
tasks: {suite: level3-pike, ids: "4,8,13"}
search: {strategy: rules}
budget: {evaluations_per_task: 2}
"""
ASKING = """
tasks: {suite: level3-pike, ids: "4,8"}
search: {strategy: pike_b, options: {branches: 2, fix_attempts: 1, phases: 1}}
budget: {queries_per_task: 8, evaluations_per_task: 8}
models:
  optimise: {provider: scripted, model: default, key_env: null}
"""


def tick(run, *arguments):
    """One call; (exit code, message)."""
    process = start_agent(run, "--once", *arguments)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def events(run):
    return [s.event for task in run.tasks for s in read_task(run.dir, task_slug(task.key))]


def segments(run):
    return sorted(path.name for path in (run.dir / "journal").glob("*.jsonl"))


def test_a_look_at_which_nothing_is_ready_leaves_no_trace(tmp_path):
    run = make_run(tmp_path / "a", RULES)
    first = tick(run)
    before = segments(run)
    assert len(before) == 3
    assert tick(run) == first, "nothing has come in between"
    assert segments(run) == before


def test_ticks_and_a_worker_end_a_search(tmp_path):
    run = make_run(tmp_path / "a", RULES)
    for _ in range(20):
        code, said = tick(run)
        assert code == 0, said
        if run.finished():
            break
        assert "the same command goes on" in said
        assert judge_all(run)
    assert run.finished()
    assert "3 of 3 tasks finished" in said
    assert (run.dir / "archive.h5").exists()
    made = (run.dir / "archive.h5").stat().st_mtime_ns
    assert tick(run)[0] == 0
    assert (run.dir / "archive.h5").stat().st_mtime_ns == made, "it is current already"
    assert run.mailbox.closed()


@pytest.mark.parametrize("workflow", [RULES, ASKING])
def test_two_at_the_same_time_never_work_on_one_task(tmp_path, workflow):
    run = make_run(tmp_path / "a", workflow)
    for _ in range(20):
        both = [start_agent(run, "--once") for _ in range(2)]
        for process in both:
            _, said = process.communicate(timeout=120)
            assert process.returncode in (0, 75), said
            assert process.returncode == 0 or "locked by agent-" in said
        if run.finished():
            break
        judge_all(run)
    assert run.finished()
    seen = events(run)
    assert_each_once(e.request_id for e in seen if isinstance(e, Requested))
    assert_each_once(e.result.request_id for e in seen if isinstance(e, Evaluated))
    asked = [e.query_id for e in seen if isinstance(e, QueryReserved)]
    assert_each_once(asked)
    answered = [e.query_id for e in seen if isinstance(e, QueryAnswered)]
    assert sorted(asked) == sorted(answered), "none was lost to the other one"
    written = sum(
        len((run.dir / "journal" / name).read_bytes().splitlines()) for name in segments(run)
    )
    assert written == len(seen), "nothing was written that does not count"


def assert_each_once(ids):
    assert not [each for each, count in Counter(ids).items() if count > 1]


def test_tasks_of_another_agent_are_left_to_it(tmp_path):
    run = make_run(tmp_path / "a", RULES)
    held = [task_slug(task.key) for task in run.tasks]
    locks = [hold(run, slug) for slug in held[:2]]
    try:
        code, said = tick(run)
        assert code == 0
        assert "2 tasks driven by another agent" in said
        assert [name.split(".")[0] for name in segments(run)] == [held[2], *held[:2]]
        assert judge_all(run) == 2
        locks.append(hold(run, held[2]))
        code, said = tick(run)
        assert code == 75, "all tasks are held: try again later"
        assert "locked by somebody" in said
    finally:
        for lock in locks:
            lock.close()
    assert tick(run)[0] == 0
    assert {name.split(".")[0] for name in segments(run)} == set(held)


def hold(run, slug):
    return TaskJournal.open(run.dir, slug, writer="somebody", seed=0, clock=lambda: 0.0)


LOOK = """
import json, sys, threading
from pike_hpc.cli.main import main
code = main(["agent", sys.argv[1], "--once", "--max-seconds", "30"])
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


@pytest.mark.parametrize("workflow", [RULES, ASKING])
def test_a_tick_loads_no_torch(tmp_path, workflow):
    run = make_run(tmp_path / "a", workflow)
    argv = [sys.executable, "-c", LOOK, str(run.dir)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["code"] == 0, done.stderr
    assert "pike_hpc.agent" in found["modules"]
    assert not {"torch", "triton"} & set(found["modules"])
    assert run.mailbox.waiting() > 0


@pytest.mark.parametrize("wrong", ["-1", "inf", "soon"])
def test_a_time_that_is_none_is_refused(tmp_path, wrong):
    argv = [sys.executable, "-m", "pike_hpc", "agent", str(tmp_path), "--max-seconds", wrong]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--max-seconds" in done.stderr
    assert "seconds, 0 for no limit" in done.stderr
