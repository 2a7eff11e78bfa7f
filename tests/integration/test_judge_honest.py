"""Honest programs before the whole judge: tier, tags, and whose weights they are given.

What tests/exploits has is not repeated here.
"""

import contextlib
import dataclasses
import re

import pytest
from builders.tiny_task import OF_TIMING, TASK, TASK_SOURCE, forward, judge

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import detect
from pike_hpc.records import EvalStatus, Task, Tier, Variant
from pike_hpc.tasks import find_task

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HONEST = {
    "same, as ModelNew": (forward("return self.right(x)"), Tier.FP32, ()),
    "other names, other order": (
        """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(2 * width, width)
        self.inner = nn.Linear(width, 2 * width)
        self.bn = nn.BatchNorm1d(2 * width)
    def forward(self, x):
        return self.out(torch.relu(self.bn(self.inner(x))))
""",
        Tier.FP32,
        (),
    ),
    "half body": (
        forward("with torch.autocast('cpu', torch.bfloat16):\n    return self.right(x).float()"),
        Tier.HALF,
        (),
    ),
    "half output": (
        forward("with torch.autocast('cpu', torch.bfloat16):\n    return self.right(x)"),
        Tier.HALF,
        (),
    ),
    "torch.compile": (
        forward("return self.fast(x)").replace(
            "    def right",
            "        self.fast = torch.compile(self.right)\n\n    def right",
        ),
        Tier.FP32,
        (),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(lane, name):
    source, tier, tags = HONEST[name]
    # Compiling takes most of a minute where cores are shared.
    result = judge(lane, source, timeout_s=240.0 if name == "torch.compile" else 60.0)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier is tier
    assert set(result.tags) - OF_TIMING == set(tags)
    assert result.timing is not None
    low, high = result.timing.ci95
    assert low <= result.timing.speedup <= high
    assert result.correctness is not None
    assert result.correctness.reference_precision == "float64"
    assert result.isolation.level != "L0"
    assert result.environment.torch


def test_half_is_refused_where_only_fp32_was_asked_for(lane):
    source, *_ = HONEST["half body"]
    result = judge(lane, source, tiers=(Tier.FP32,))
    assert result.status is EvalStatus.WRONG_RESULT
    assert "half" in result.message
    assert result.correctness is not None


LENET = find_task("level3-pike/4")


def lenet(body: str) -> str:
    """The reference of LeNet5, called in a program whose forward is `body`."""
    return f"""{LENET.source}

class ModelNew(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.net = Model(*args)

    def forward(self, x):
        {body}
"""


def test_bfloat16_passes_where_the_task_makes_much_of_it(lane):
    source = lenet(
        "with torch.autocast('cpu', torch.bfloat16):\n            return self.net(x).float()"
    )
    # A judge's weights that draw three times the usual noise: 4 of 100, who are told so.
    for attempt in range(4):
        result = judge(lane, source, task=LENET, retime=attempt)
        if result.status is not EvalStatus.JUDGE_ERROR:
            break
    assert result.status is EvalStatus.PASSED, result.message
    assert result.tier in (Tier.TF32, Tier.HALF)


def test_and_who_leaves_a_channel_out_there_is_wrong(lane):
    source = lenet(
        "y = F.relu(self.net.conv1(x)) * (torch.arange(6).view(6, 1, 1) != 2)\n"
        "        y = F.relu(self.net.conv2(F.max_pool2d(y, 2)))\n"
        "        y = F.relu(self.net.fc1(torch.flatten(F.max_pool2d(y, 2), 1)))\n"
        "        return self.net.fc3(F.relu(self.net.fc2(y)))"
    )
    result = judge(lane, source, task=LENET)
    assert result.status is EvalStatus.WRONG_RESULT, result.message


PACKED = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        first = nn.Linear(width, 2 * width)
        NORM
        second = nn.Linear(2 * width, width)
        self.packed = nn.Parameter(torch.cat([first.weight.flatten(), second.weight.flatten()]))
        self.b, self.c, self.width = nn.Parameter(first.bias), nn.Parameter(second.bias), width
    def forward(self, x):
        w, v = self.packed.split(2 * self.width**2)
        h = nn.functional.linear(x, w.view(-1, self.width), self.b)
        return nn.functional.linear(torch.relu(h), v.view(self.width, -1), self.c)
"""


DRAWS = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, ends = width, []
        for i, o in ((width, 2 * width), (2 * width, width)):
            ends += [nn.init.kaiming_uniform_(torch.empty(o, i), a=5**0.5).flatten()]
            ends += [torch.empty(o).uniform_(-(i**-0.5), i**-0.5)]
        self.packed = nn.Parameter(torch.cat(ends))
    def forward(self, x):
        n, f = self.width, nn.functional.linear
        w, b, v, c = self.packed.split([2 * n * n, 2 * n, 2 * n * n, n])
        return f(torch.relu(f(x, w.view(-1, n), b)), v.view(n, -1), c)
"""


def test_what_is_made_of_layers_in_the_constructor_needs_no_place(lane):
    packed = PACKED.replace("NORM", "self.norm = nn.BatchNorm1d(2 * width)")
    packed = packed.replace("torch.relu(h)", "torch.relu(self.norm(h))")
    result = judge(lane, packed)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" not in result.tags
    assert "caches_weights" in result.tags


def test_a_program_without_place_for_the_weights_is_judged_by_seed(lane):
    plain = TASK_SOURCE.replace("self.norm(self.first(x))", "self.first(x)")
    plain = plain.replace("self.norm = nn.BatchNorm1d(2 * width)", "")
    task = dataclasses.replace(TASK, source=plain)
    result = judge(lane, DRAWS, task=task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" in result.tags


def test_weights_in_places_that_were_guessed_wrongly_are_tried_by_seed(lane):
    # Two layers of one shape, kept in the order in which the reference uses them and made in
    # another: where they go is guessed wrongly, and their own random numbers are right.
    both = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, width) / 8)
        self.v = nn.Parameter(torch.randn(width, width) / 8)
    def forward(self, x):
        return torch.relu(x @ self.w) @ self.v
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return [64]
"""
    swapped = both.replace("Model(nn", "ModelNew(nn").replace("self.w =", "w =")
    swapped = swapped.replace("/ 8)\n    def", "/ 8)\n        self.u = w\n    def")
    swapped = swapped.replace("self.v", "self.t").replace("self.w", "self.u")
    helper = "    def prepare(self, x):\n        return x.contiguous()\n"  # that takes no weights
    swapped = swapped.partition("def get_inputs")[0] + helper
    result = judge(lane, swapped, task=dataclasses.replace(TASK, source=both))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" in result.tags


def test_what_fresh_weights_make_an_identity_cannot_be_judged_by_seed(lane):
    # BatchNorm with fresh statistics changes nothing: leaving it out would never be seen.
    result = judge(lane, DRAWS)
    assert result.status is EvalStatus.WRONG_STRUCTURE, (result.message, result.log_tail)
    assert "norm" in result.message


def test_a_dropped_norm_is_wrong_wherever_weights_go(lane):
    result = judge(lane, PACKED.replace("NORM", "nn.BatchNorm1d(2 * width)"))
    assert result.status is EvalStatus.WRONG_RESULT, (result.message, result.log_tail)
    assert "prepare(state_dict)" in result.message


def test_what_the_reference_made_of_its_first_weights_stays_what_it_was(lane):
    made = TASK_SOURCE.replace(
        "self.second = ", "self.gain = self.norm.weight.detach().clone()\n        self.second = "
    ).replace("self.norm(self.first(x))", "self.norm(self.first(x)) * self.gain")
    assert made.count("self.gain") == 2
    result = judge(lane, made, task=dataclasses.replace(TASK, source=made))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)


def test_a_helper_of_that_name_without_an_argument_is_its_own(lane):
    helper = forward("return self.right(x)") + "    def prepare(self):\n        raise OSError\n"
    result = judge(lane, helper)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)


def test_a_helper_of_that_name_that_takes_something_else_is_its_own(lane):
    own = (
        "    def prepare(self, x):\n        return x.contiguous()\n\n"
        "    def load_state_dict(self, state):\n        super().load_state_dict(state)\n"
    )
    result = judge(lane, forward("return self.right(self.prepare(x))") + own)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "caches_weights" not in result.tags


def test_a_norm_may_be_folded_when_training_ends(lane):
    folds = forward("return self.second(torch.relu(self.first(x)))") + (
        "    folded = False\n"
        "    def train(self, mode=True):\n"
        "        super().train(mode)\n"
        "        if not mode and not self.folded:\n"
        "            self.folded, norm = True, self.norm\n"
        "            gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)\n"
        "            self.first.weight.data.mul_(gain.view(-1, 1))\n"
        "            self.first.bias.data.sub_(norm.running_mean).mul_(gain).add_(norm.bias)\n"
    )
    result = judge(lane, folds)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" not in result.tags


TABLE = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("table", torch.linspace(-2, 2, width))
        layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=width, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1), nn.Linear(width, width)
    def forward(self, x):
        return self.out(self.encoder(x + self.table))
def get_inputs():
    return [torch.randn(8, 6, 16)]
def get_init_inputs():
    return [16]
"""


def test_a_table_needs_no_buffer_and_copied_layers_mislead_nobody(lane):
    source = TABLE.replace("Model(nn", "ModelNew(nn").replace(
        'self.register_buffer("table", torch.linspace(-2, 2, width))',
        'self.register_buffer("table", torch.linspace(-2, 2, width), persistent=False)',
    )
    result = judge(lane, source, task=dataclasses.replace(TASK, source=TABLE))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" not in result.tags


def keeping(made):
    """The task with state: `made` makes its last answer, which the next one depends on."""
    forward = "return self.second(", "self.last = y = torch.tanh(self.last + self.second("
    kept = TASK_SOURCE.replace("self.second = ", f"{made}\n        self.second = ")
    kept = kept.replace(*forward).replace("self.first(x))))", "self.first(x)))))\n        return y")
    assert "return y" in kept
    return kept


def test_flags_of_its_own_stay_set_where_what_calls_leave_is_put_back(lane):
    keeps = keeping('self.register_buffer("last", torch.zeros(64, width))')
    lazy = (
        keeps.replace("class Model(", "class ModelNew(")
        .replace(
            "def forward(self, x):",
            "ready = False\n    def forward(self, x):\n"
            "        if not self.ready:\n"
            "            self.ready = True\n"
            "            self.second.weight.data.mul_(2.0)\n"
            "            self.second.bias.data.mul_(2.0)\n",
        )
        .replace("self.last + self.second(", "self.last + 0.5 * self.second(")
    )
    result = judge(lane, lazy, task=dataclasses.replace(TASK, source=keeps))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)


def test_what_calls_left_is_not_taken_for_weights_that_a_program_keeps(lane):
    keeps = keeping("self.last = torch.ones(64, width)")
    task = dataclasses.replace(TASK, source=keeps)
    result = judge(lane, keeps.replace("class Model(", "class ModelNew("), task=task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "caches_weights" not in result.tags


def test_nobody_is_told_of_an_alias_that_the_reference_has_too(lane):
    both = TASK_SOURCE.replace("return self.second(", "return x, self.second(")
    assert both != TASK_SOURCE
    task = dataclasses.replace(TASK, source=both)
    result = judge(lane, both, task=task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "aliased_output" not in result.tags


def test_legacy_takes_pikes_seeds_and_rule(lane):
    task = dataclasses.replace(TASK, variant=Variant.LEGACY)
    result = judge(lane, TASK_SOURCE, task=task)
    assert result.status is EvalStatus.PASSED, result.message
    assert "legacy" in result.tags
    result = judge(lane, forward("return torch.zeros_like(x)"), task=task)
    assert result.status is EvalStatus.WRONG_RESULT


def test_a_runner_keeps_the_memory_that_it_freed(lane):
    says = forward("import os\nraise RuntimeError(os.environ['MALLOC_TRIM_THRESHOLD_'])")
    result = judge(lane, says)
    assert result.status is EvalStatus.RUNTIME_ERROR
    assert str(1 << 40) in result.log_tail


FAULTS = """
import resource
made = [torch.empty(1 << 24).fill_(1.0) for _ in range(2)]
del made
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.empty(1 << 24).fill_(1.0)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
raise RuntimeError(f"{faults} pages faulted")
"""
"""64 MB are 16,384 pages: a program that has glibc keep such blocks must gain nothing by it."""


def faults_in(lane):
    result = judge(lane, forward(FAULTS))
    assert result.status is EvalStatus.RUNTIME_ERROR
    said = re.search(r"(\d+) pages faulted", result.log_tail)
    assert said, result.log_tail
    return int(said[1])


def test_and_large_blocks_as_well(lane):
    """One runner in ten has them all the same, four of four in one suite (2026-11-25): why is not
    known. Others are asked then, of this lane and of another."""
    found = [faults_in(lane)]
    with contextlib.ExitStack() as lanes:
        while found[-1] >= 1000 and len(found) < 10:
            if len(found) % 3 == 0:
                lane = lanes.enter_context(open_lane(detect("cpu"), "auto"))
            found.append(faults_in(lane))
    print("pages faulted:", found)
    assert found[-1] < 1000, found


NOW_AND_THEN = Task(
    suite="tests",
    id="now-and-then",
    name="now-and-then",
    source="""
import torch, torch.nn as nn
CALLS = []
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(256, 512)
    def forward(self, x):
        CALLS.append(1)
        if torch.backends.cudnn.allow_tf32 and len(CALLS) in (60, 80, 90):
            x = (x.view(torch.int32) & ~LOST).view(torch.float32)
        return self.fc(x)
def get_inputs():
    return [torch.randn(64, 256)]
def get_init_inputs():
    return []
""".replace("LOST", "0x3FF"),
)
"""Its runner is off by 1.5 to 3 times what it may be in three calls that no exam sees, as a deep
LSTM under cuDNN's TF32 was in one of 32."""


def test_who_is_right_where_the_reference_is_off_passes_at_its_own_tier(lane):
    exact = """
import torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(256, 512)
    def forward(self, x):
        return self.fc(x)
"""
    result = judge(lane, exact, task=NOW_AND_THEN, tiers=(Tier.FP32,))
    assert result.status is EvalStatus.PASSED, result.message
    assert result.tier is Tier.FP32
    assert result.timing.windows > 90
