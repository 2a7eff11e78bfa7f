"""What judge and runner agree on about a task: which of its outputs are on the host."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_frame import agree  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import TaskRefused, build  # noqa: E402

pytestmark = pytest.mark.torch

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.to("meta"), x.cpu(), {"loss": 1.5}


def get_inputs():
    return [torch.randn(2, 3)]


def get_init_inputs():
    return []
"""


def test_what_the_reference_leaves_on_the_host_is_known():
    loaded = build(Task(suite="tests", id="1", name="places", source=SOURCE))
    frame, _ = agree(loaded, loaded.model_class(), (), 0, torch.device("cpu"))
    assert frame.on_host == (1, 2)


@pytest.mark.parametrize("choose", ["x.median(0).values", "x.topk(1).values", "x.amax(0)"])
def test_whether_the_reference_chooses_is_known(choose):
    source = SOURCE.replace("x.cpu()", choose)
    loaded = build(Task(suite="tests", id="1", name="chooses", source=source))
    frame, _ = agree(loaded, loaded.model_class(), (), 0, torch.device("cpu"))
    assert frame.chooses is ("amax" not in choose)


EXTRA = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return 2 * x

    def get_extra_state(self):
        return {"scale": 2}

    def set_extra_state(self, state):
        pass


def get_inputs():
    return [torch.randn(2, 3)]


def get_init_inputs():
    return []
"""


def test_state_that_is_no_tensor_is_refused_by_name():
    loaded = build(Task(suite="tests", id="1", name="extra", source=EXTRA))
    with pytest.raises(TaskRefused, match="_extra_state in the model's state_dict is no plain"):
        agree(loaded, loaded.model_class(), (), 0, torch.device("cpu"))
