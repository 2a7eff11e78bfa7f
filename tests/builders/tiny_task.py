"""A task that is judged in a second, programs for it, and their verdicts."""

import dataclasses

from pike_hpc.evaluate.lane import Lane
from pike_hpc.records import EvalRequest, EvalResult, Task, to_json

TASK_SOURCE = """
import torch
import torch.nn as nn

batch = 64
width = 64


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def get_inputs():
    return [torch.randn(batch, width)]


def get_init_inputs():
    return [width]
"""

TASK = Task(suite="tests", id="1", name="tiny", source=TASK_SOURCE)

OF_TIMING = frozenset({"early_stop", "noisy", "uneven"})
"""Tags that a busy machine may give to anybody: threads that wait for a core are uneven."""

HEAD = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.second = nn.Linear(2 * width, width)

    def right(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

"""


def forward(body: str, before: str = "") -> str:
    """A program whose forward is `body` (one statement a line)."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"{before}\n{HEAD}    def forward(self, x):\n{lines}\n"


def asked(source: str, **changes: object) -> EvalRequest:
    request = EvalRequest(
        task=TASK,
        candidate_source=source,
        device_kind="cpu",
        image_digest="tests",
        min_isolation="L0",
        timeout_s=60.0,
    )
    return dataclasses.replace(request, **changes)


def judge(lane: Lane, source: str, **changes: object) -> EvalResult:
    result = lane.evaluate(asked(source, **changes))
    to_json(result)  # every result can be written down
    assert result.message
    assert "\n" not in result.message
    assert len(result.log_tail) <= 64 * 1024
    return result
