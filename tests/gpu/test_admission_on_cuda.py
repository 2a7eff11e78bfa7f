"""Admission on a GPU: half's own noise is measured there, however slow a reference is."""

import textwrap

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_truth import Secrets, Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SLOW = """
    import time

    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            time.sleep(0.12)
            return q * k + v

    def get_inputs():
        return [torch.randn(4, 8, 16)]

    def get_init_inputs():
        return []
"""


def test_what_half_ends_at_hangs_on_no_clock(device):
    task = Task(suite="tests", id="1", name="slow", source=textwrap.dedent(SLOW))
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cuda"), Secrets(b"key"))
    try:
        found = admit(truth, task.digest)
    finally:
        truth.close()
    assert found.admission.admitted, found.admission.reason
    assert found.wide is None
    assert found.half_noise > 2e-3  # rounding alone: about 1.1e-3
