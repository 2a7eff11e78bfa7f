"""When a judge gives up sharing GPU memory and goes through the host."""

import pytest

from pike_hpc.evaluate.judge_failures import cannot_share
from pike_hpc.evaluate.judge_link import RunnerFailed
from pike_hpc.evaluate.runner import Op
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
