"""What a judge makes of runners that fail: through the host, or in words for a person."""

import pytest

from pike_hpc.evaluate.judge_failures import cannot_share, reference_failed
from pike_hpc.evaluate.judge_host import Ending
from pike_hpc.evaluate.judge_link import RunnerFailed
from pike_hpc.evaluate.runner import Code, Op
from pike_hpc.evaluate.runner.cuda_driver import DeviceMemoryError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("error", "gives_up"),
    [
        (RunnerFailed(1, "gone", None), True),
        (RunnerFailed(1, "gone", Op.IMPORT), False),
        (RunnerFailed(1, "deadline", Op.CALL), False),
        (DeviceMemoryError("no", call="cuMemExportToShareableHandle", result="X"), True),
        (DeviceMemoryError("full", call="cuMemCreate", result="CUDA_ERROR_OUT_OF_MEMORY"), False),
        (ValueError(), False),
    ],
)
def test_only_what_says_so_is_taken_for_it(error, gives_up):
    assert cannot_share(error) is gives_up


@pytest.mark.parametrize(
    ("failed", "says"),
    [
        (
            RunnerFailed(1, "deadline", Op.LOAD),
            "it met its deadline while being constructed (LOAD)",
        ),
        (RunnerFailed(1, "deadline", None), "it met its deadline while starting"),
        (RunnerFailed(1, "gone", Op.CALL), "it ended in forward (CALL)"),
        (RunnerFailed(1, "unasked", Op.NULL), "it rang the doorbell without being asked"),
        (RunnerFailed(1, "code", Op.LOAD, Code.OUT_OF_MEMORY), "it answered OUT_OF_MEMORY"),
    ],
)
def test_a_reference_that_fails_is_told_in_words(failed, says):
    said = reference_failed(failed)
    assert said.startswith("the reference's runner failed: ")
    assert says in said
    assert "None" not in said


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (-11, "it crashed with SIGSEGV between calls (TOUCH)"),
        (139, "it crashed with SIGSEGV between calls (TOUCH)"),
        (-9, "it was killed between calls, most likely for its memory (TOUCH)"),
        (3, "it exited with status 3 between calls (TOUCH)"),
        (None, "it ended between calls (TOUCH)"),
    ],
)
def test_how_a_reference_ended_is_said_where_it_is_known(status, says):
    ending = Ending(status=status, tail="")
    said = reference_failed(RunnerFailed(1, "gone", Op.TOUCH), ending)
    assert said == f"the reference's runner failed: {says}"
    late = reference_failed(RunnerFailed(1, "deadline", Op.TOUCH), ending)
    assert late == "the reference's runner failed: it met its deadline between calls (TOUCH)"


def test_every_way_to_fail_has_its_words():
    for kind in ("gone", "deadline", "unasked"):
        for op in (None, *Op):
            assert "failed: it " in reference_failed(RunnerFailed(1, kind, op))
    for code in Code:
        assert code.name in reference_failed(RunnerFailed(1, "code", Op.CALL, code))
