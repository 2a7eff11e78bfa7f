"""Admission on a GPU: half's own noise is measured there, however slow a reference is."""

import pytest
from builders.qkv_task import SOURCE

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SLOW = SOURCE.format(body="time.sleep(0.12)\n        return q * k + v")


def test_what_half_ends_at_hangs_on_no_clock(device):
    task = Task(suite="tests", id="1", name="slow", source=SLOW)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cuda"), Secrets(b"key"))
    try:
        found = admit(truth, task.digest)
    finally:
        truth.close()
    assert found.admission.admitted, found.admission.reason
    assert found.wide is None
    assert found.half_noise > 2e-3  # rounding alone: about 1.1e-3
