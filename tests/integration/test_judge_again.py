"""What is timed again meets weights and processes that never met it. A real lane on the CPU."""

import re

import pytest

pytest.importorskip("torch")

from pike_hpc.records import EvalRequest, EvalStatus, Task

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
"""
TASK = Task(suite="again", id="1", name="tiny", source=SOURCE)
TELLS = SOURCE.replace(
    "        return torch",
    '        raise RuntimeError(f"weight={self.layer.weight[0, 0].item()}")\n        return torch',
).replace("Model", "ModelNew", 1)
"""Tells which weights it was given."""


def weight(lane, source, retime):
    request = EvalRequest(
        task=TASK,
        candidate_source=source,
        device_kind="cpu",
        image_digest="test",
        min_isolation="L0",
        retime=retime,
    )
    result = lane.evaluate(request)
    assert result.key == request.key
    assert result.status is EvalStatus.RUNTIME_ERROR, result.message
    return re.search(r"weight=(-?[0-9.e-]+)", result.message + result.log_tail)[1]


def test_fresh_secrets_for_every_round_and_one_judge_for_each(lane):
    first = weight(lane, TELLS, 0)
    assert weight(lane, TELLS + "# another\n", 0) == first, "a search keeps its task warm"
    again = weight(lane, TELLS, 1)
    assert again != first
    assert weight(lane, TELLS + "# another\n", 1) == again, "a new judge serves the whole task"
    confirmed = weight(lane, TELLS, 2)
    assert confirmed not in (first, again)
    assert weight(lane, TELLS + "# a third\n", 1) == confirmed, "it has met no program but one"
