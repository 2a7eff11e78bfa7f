"""How many streams a program's work is on, as seen from inside, and what connections it gets."""

import pytest

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import image_digest
from pike_hpc.proposers.rules import probe_toolchain, rewrite
from pike_hpc.records import EvalRequest, EvalStatus, Task
from pike_hpc.tasks import effective_source, find_task

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

LENET = find_task("level3-pike/4")

RECURRENT = """
import torch
from torch import nn

torch.backends.cudnn.allow_tf32 = False  # too coarse for many steps


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(128, 128, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layers(x)[0]


def get_inputs():
    return [torch.randn(8, 32, 128)]


def get_init_inputs():
    return []
"""
LSTM = Task(suite="tests", id="1", name="lstm", source=RECURRENT)

SAYS = """
import os
print("connections:", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "all"))
"""

SPREAD = (
    SAYS
    + """
class ModelNew(Model):
    def forward(self, x):
        here = torch.cuda.current_stream()
        if not hasattr(self, "side"):
            self.side = MAKE()
        x = x * 1
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            y = super().forward(x)
        here.wait_stream(self.side)
        return y
"""
)


@pytest.fixture(scope="module")
def judge(device):
    with open_lane(device, "auto") as lane:

        def evaluate(task, source):
            request = EvalRequest(
                task=task,
                candidate_source=source,
                device_kind=device.kind,
                image_digest=image_digest(),
                timeout_s=180,
            )
            phases = []
            result = lane.evaluate(request, phases.append)
            assert result.status is EvalStatus.PASSED, result
            print(task.key, phases, *result.profile_lines, sep="\n")
            return result, phases.count("profile")

        yield evaluate


@pytest.mark.parametrize("rule", ["identity", "compile_reduce_overhead"])
def test_work_on_one_stream_is_judged_once_with_one_connection(judge, device, rule):
    made = rewrite(
        effective_source(LENET),
        (rule,),
        toolchain=probe_toolchain(),
        device_kind=device.kind,
    )
    result, profiles = judge(LENET, made.source + SAYS)
    assert result.profile.streams == 1
    assert profiles == 1
    assert "connections: 1" in result.log_tail


def test_streams_that_no_text_shows_are_judged_again_with_all_connections(judge):
    hidden = SPREAD.replace("MAKE", 'getattr(torch.cuda, "Str" + "eam")')
    result, profiles = judge(LENET, effective_source(LENET) + hidden)
    assert result.profile.streams == 2
    assert profiles == 2
    assert "connections: all" in result.log_tail


def test_streams_of_the_text_are_judged_with_all_connections_at_once(judge):
    shown = SPREAD.replace("MAKE", "torch.cuda.Stream")
    result, profiles = judge(LENET, effective_source(LENET) + shown)
    assert result.profile.streams == 2
    assert profiles == 1
    assert "connections: all" in result.log_tail


def test_a_recurrent_layer_is_judged_as_its_profile_says(judge):
    program = RECURRENT.partition("def get_inputs")[0].replace("class Model", "class ModelNew")
    result, profiles = judge(LSTM, program + SAYS)
    assert result.profile.streams >= 1
    alone = result.profile.streams == 1
    assert profiles == (1 if alone else 2)
    assert ("connections: 1" if alone else "connections: all") in result.log_tail
