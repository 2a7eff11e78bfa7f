"""What following a run comes to: its exit code."""

import shlex

import pytest
from builders.simulated_run import make_run

from pike_hpc.cli import main
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.records import (
    EvalRequest,
    EvalStatus,
    Evaluated,
    Finished,
    Proposal,
    Proposed,
    Requested,
    TaskOpened,
)
from pike_hpc.worker import simulated_result

FEW = """
tasks: {suite: level0, ids: "1,2"}
search: {strategy: rules}
evaluate: {devices: [simulated]}
"""


def request_with(task, device_kind, *, passes):
    """A request that the simulated judge passes, or doesn't."""
    requests = (
        EvalRequest(task=task, candidate_source=f"{n}", device_kind=device_kind, image_digest="i")
        for n in range(999)
    )
    return next(
        request
        for request in requests
        if (simulated_result(request, 0).status is EvalStatus.PASSED) is passes
    )


def search_over(run, task, *, passes):
    """Its journal: one candidate, judged, and the end."""
    request = request_with(task, run.device_kind, passes=passes)
    name = request.candidate.id
    proposal = Proposal(candidate_id=name, operator="rule:x")
    journal = TaskJournal.open(
        run.dir, task_slug(task.key), writer="w", seed=0, clock=lambda: 1000.0
    )
    journal.append(TaskOpened(task=task, device_kind=run.device_kind))
    journal.append(Proposed(node="n", proposal=proposal, source=request.candidate_source))
    journal.append(Requested(request_id=request.request_id, candidate_id=name))
    journal.append(Evaluated(result=simulated_result(request, 0)))
    journal.append(Finished(reason="the end"))
    journal.close()


@pytest.mark.parametrize(("second_passes", "code"), [(True, 0), (False, 3)])
def test_a_run_with_a_task_without_a_correct_candidate_exits_with_3(tmp_path, second_passes, code):
    run = make_run(tmp_path / "a", FEW)
    first, second = run.tasks
    search_over(run, first, passes=True)
    search_over(run, second, passes=second_passes)
    assert main(["resume", str(run.dir)]) == code


def test_the_last_line_names_the_command_that_writes_what_won(tmp_path, capsys):
    run = make_run(tmp_path / "a b", FEW)
    for task in run.tasks:
        search_over(run, task, passes=True)
    assert main(["resume", str(run.dir)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    named, words = last.split(maxsplit=1)
    command = words.removesuffix(" writes their code").replace("DIR", shlex.quote(str(tmp_path)))
    assert named == "winners"
    assert main(shlex.split(command)[1:]) == 0
    assert len(list((tmp_path / "winners").glob("level0-*.py"))) == 2
