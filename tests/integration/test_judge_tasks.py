"""Kinds of tasks before the whole judge: what travels, what is reset, whose weights count."""

import contextlib
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pike_hpc import sandbox  # noqa: E402
from pike_hpc.evaluate.lane import Lane  # noqa: E402
from pike_hpc.records import EvalRequest, EvalStatus, Task  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HEAD = """
import dataclasses
import typing
import torch
from torch import nn
import torch.nn.functional as F

"""

RICH = """
@dataclasses.dataclass
class Config:
    scale: float
    mask: torch.Tensor

class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: int

@dataclasses.dataclass
class Answer:
    real: torch.Tensor
    turned: torch.Tensor
    count: torch.Tensor

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x, config, pair, nothing, table, turn, offset):
        assert nothing is None and offset == 2j and isinstance(pair.right, int)
        y = self.layer(x + pair.left * pair.right) * config.scale * config.mask + table["bias"][0]
        turned = torch.view_as_complex(y.view(-1, 4, 2)) * turn + offset
        return Answer(y, turned, (y > 0).sum())

def get_inputs():
    return [torch.randn(4, 8), Config(0.5, torch.rand(8) + 0.5), Pair(torch.randn(8), 3), None,
            {"bias": (torch.randn(8),)}, torch.polar(torch.ones(4), torch.rand(4)), 2j]

def get_init_inputs():
    return []
"""

ASKS = """
import enum

class Act(enum.Enum):
    RELU = "relu"
    TANH = "tanh"

@dataclasses.dataclass(frozen=True)
class Config:
    act: Act

@dataclasses.dataclass
class Batch:
    x: torch.Tensor

DEFAULT = Config(Act.TANH)

class Model(nn.Module):
    def __init__(self, config, act):
        super().__init__()
        assert isinstance(config, Config) and config.act is Act.TANH and act is Act.RELU
        self.layer = nn.Linear(8, 8)
    def forward(self, batch):
        assert isinstance(batch, Batch)
        return torch.tanh(self.layer(batch.x))

def get_inputs():
    return [Batch(torch.randn(4, 8))]

def get_init_inputs():
    return [DEFAULT, Act.RELU]
"""

COUNTING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8), persistent=False)
        self.calls = 0
    def forward(self, x):
        self.average.mul_(0.9).add_(0.1 * x.mean(0))
        self.calls += 1
        return self.layer(x - self.average) * self.calls

def get_inputs():
    return [torch.randn(4, 8) + 1]

def get_init_inputs():
    return []
"""

RANDOM = COUNTING.replace("self.layer(x - self.average)", "self.layer(x + torch.rand(8))")

NAMED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []

def get_state_dict():
    return {"layer.weight": torch.eye(8) * 3, "layer.bias": torch.arange(8.0)}
"""

NARROW = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64, dtype=torch.bfloat16)
        self.gate = nn.Linear(64, 4, bias=False, dtype=torch.bfloat16)
        self.experts = nn.ModuleList(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(4))
    def forward(self, x):
        x = self.layer(x.to(torch.bfloat16))
        weights, chosen = torch.topk(F.softmax(self.gate(x), -1, dtype=torch.float32), 2)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == i)
            y[row] += expert(x[row]) * weights[row, slot, None].to(y.dtype)
        return y

def get_inputs():
    return [torch.randn(96, 64)]

def get_init_inputs():
    return []
"""

FAINT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loud, self.faint = nn.Linear(32, 32), nn.Linear(32, 32)
    def forward(self, x):
        return self.loud(x) + 0.005 * self.faint(x)

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return []
"""

TAIL = """
def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return []
"""

RARE = """
class Model(nn.Module):
    def forward(self, x):
        return x > 4.0
""" + TAIL.replace("(64, 32)", "(1024, 1024)")

RESIDUAL = (
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loud, self.faint = nn.Linear(32, 32), nn.Linear(32, 32)
    def forward(self, x):
        return self.loud(x) + x + 0.0175 * self.faint(x)
"""
    + TAIL
)

TWO_LEAVES = (
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loud, self.faint = nn.Linear(32, 32), nn.Linear(32, 32)
    def forward(self, x):
        return self.loud(x) + 0.012 * self.faint(x), x * 2
"""
    + TAIL
)

DEFAULTS = (
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        torch.set_default_dtype(torch.bfloat16)
    def forward(self, x):
        return self.layer(x) + torch.full((32,), 0.1)
"""
    + TAIL
)

NO_FLOAT64 = (
    """
import threading
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.lock = nn.Linear(32, 32), threading.Lock()
    def forward(self, x):
        assert x.dtype == torch.float32
        return self.layer(x) + torch.from_numpy(x.numpy() * 0.5)
"""
    + TAIL
)

ODD_ANSWER = (
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
    def forward(self, x):
        return {"y": self.layer(x), "mode": "eval", "none": None, "turn": complex(x.sum(), 1)}
"""
    + TAIL
)

LARGE = """
rows = 9000
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(rows, 8192)
        self.head = nn.Linear(8192, 4)
        self.register_buffer("cache", torch.zeros(64, 8192), persistent=False)
    def forward(self, tokens):
        self.cache[:tokens.shape[0]] = self.table(tokens)
        return self.head(self.cache[:tokens.shape[0]])

def get_inputs():
    return [torch.randint(0, rows, (16,))]

def get_init_inputs():
    return []
"""


def task_of(body: str) -> Task:
    return Task(suite="tests", id="1", name="kind", source=HEAD + body)


@pytest.fixture(scope="module")
def lane():
    scratch = Path("/tmp") / f"pike-kinds-{os.getpid()}"
    facts = sandbox.look()
    with Lane("cpu", sandbox.choose("auto", facts), scratch=scratch, threads=1) as lane:
        yield lane
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def judge(lane, task, candidate=None):
    request = EvalRequest(
        task=task,
        candidate_source=candidate or task.source,
        device_kind="cpu",
        image_digest="test",
        timeout_s=60,
        min_isolation="L0",
    )
    return lane.evaluate(request)


def test_a_copy_of_the_task_is_given_what_it_asks_for(lane):
    task = task_of(ASKS)
    result = judge(lane, task, task.source + "\n\nclass ModelNew(Model):\n    pass\n")
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier == "fp32"


def test_every_kind_of_argument_and_answer_travels(lane):
    task = task_of(RICH)
    result = judge(lane, task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.correctness.reference_precision == "float64"
    dropped = task.source.replace("turned, (y > 0)", "turned.conj(), (y > 0)")
    assert judge(lane, task, dropped).status is EvalStatus.WRONG_RESULT
    fewer = task.source.replace("return Answer(y, turned, (y > 0).sum())", "return y, turned")
    assert judge(lane, task, fewer).status is EvalStatus.WRONG_STRUCTURE


def test_what_a_call_leaves_behind_is_put_back_before_the_next(lane):
    task = task_of(COUNTING)
    admission = lane.admit(task)
    assert admission.admitted, admission.reason
    assert admission.resets_state
    result = judge(lane, task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    stale = task.source.replace("self.average.mul_(0.9).add_(0.1 * x.mean(0))", "")
    assert judge(lane, task, stale).status is EvalStatus.WRONG_RESULT


def test_a_random_answer_is_refused(lane):
    admission = lane.admit(task_of(RANDOM))
    assert admission.admitted is False
    assert "two answers" in admission.reason


def test_weights_that_a_task_names_are_the_ones_it_is_judged_with(lane):
    task = task_of(NAMED)
    assert lane.admit(task).admitted
    assert judge(lane, task).status is EvalStatus.PASSED
    # Right with these weights and with no others: the probe's weights are not followed.
    frozen = task.source.replace(
        "return self.layer(x)", "return 3 * x + torch.arange(8.0, device=x.device)"
    )
    result = judge(lane, task, frozen)
    assert result.status is EvalStatus.WRONG_RESULT
    assert "other weights" in result.message


def test_a_task_in_bfloat16_is_judged_at_its_own_precision(lane):
    admission = lane.admit(task_of(NARROW))
    assert admission.admitted, admission.reason
    assert admission.native_precision == "bfloat16"
    assert set(admission.limits) == {"half"}
    assert set(admission.inadmissible) == {"fp32", "tf32"}
    result = judge(lane, task_of(NARROW))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier == "half"
    top1 = task_of(NARROW).source.replace(
        ", dtype=torch.float32), 2)", ", dtype=torch.float32), 1)"
    )
    assert judge(lane, task_of(NARROW), top1).status is EvalStatus.WRONG_RESULT


def test_a_tier_at_which_a_layer_can_be_left_out_is_not_offered(lane):
    task = task_of(FAINT)
    admission = lane.admit(task)
    assert admission.admitted, admission.reason
    assert set(admission.limits) == {"fp32", "tf32"}
    assert "layer_skipped" in admission.inadmissible["half"]
    lazy = task.source.replace(" + 0.005 * self.faint(x)", "")
    result = judge(lane, task, lazy)
    assert result.status is EvalStatus.WRONG_RESULT, result.message


def test_a_large_model_is_held_once_and_judged(lane):
    task = task_of(LARGE)
    admission = lane.admit(task)
    assert admission.admitted, admission.reason
    assert admission.reference_precision == "float64"
    result = judge(lane, task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier == "fp32"


def test_zeros_do_not_pass_for_whole_numbers_that_hardly_ever_move(lane):
    """Of a million elements 60 do, and one of those may be a near tie."""
    task = task_of(RARE)
    right = judge(lane, task, task.source)
    assert right.status is EvalStatus.PASSED, right.message
    zeros = judge(lane, task, task.source.replace("x > 4.0", "torch.zeros_like(x).bool()"))
    assert zeros.status is EvalStatus.WRONG_RESULT
    assert "integer output differs" in zeros.message


def test_a_layer_beside_a_shortcut_is_left_out_without_its_input(lane):
    admission = lane.admit(task_of(RESIDUAL))
    assert admission.mutants["layer_skipped"] < 0.02
    assert "faint = 0" in admission.inadmissible["half"]


def test_each_output_is_held_to_its_own_limit(lane):
    task = task_of(TWO_LEAVES)
    admission = lane.admit(task)
    lazy = judge(lane, task, task.source.replace("+ 0.012 * self.faint(x)", ""))
    assert ("half" in admission.inadmissible) or lazy.status is EvalStatus.WRONG_RESULT
    assert lazy.status is not EvalStatus.PASSED


def test_a_constructor_that_changes_a_default_changes_nothing_here(lane):
    result = judge(lane, task_of(DEFAULTS))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier == "fp32"


def test_what_has_no_float64_form_is_judged_in_its_own_precision(lane):
    admission = lane.admit(task_of(NO_FLOAT64))
    assert admission.admitted, admission.reason
    assert admission.reference_precision == "float32"
    assert "fp32" in admission.inadmissible
    result = judge(lane, task_of(NO_FLOAT64))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)


def test_text_and_numbers_in_an_answer_count_too(lane):
    task = task_of(ODD_ANSWER)
    result = judge(lane, task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    other = judge(lane, task, task.source.replace('"eval"', '"train"'))
    assert other.status is EvalStatus.WRONG_STRUCTURE


def test_refused_tasks_leave_no_memory_behind(lane):
    def weights_held():
        held = 0
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held += "memfd:weights" in str(fd.readlink())
        return held

    own = str(os.getpid())

    def is_our_judge(process):
        with contextlib.suppress(OSError):  # others end while one looks
            words, stat = (process / "cmdline").read_bytes(), (process / "stat").read_text()
            return b"evaluate.judge_process" in words and stat.rpartition(")")[2].split()[1] == own
        return False

    lane.admit(task_of(NAMED))
    processes = (p for p in Path("/proc").iterdir() if p.name.isdecimal())
    pid = next(int(p.name) for p in processes if is_our_judge(p))
    held = []
    for i in range(8):
        lane.admit(task_of(RANDOM + f"# {i}"))
        held.append(weights_held())
    # What waits for the garbage collector comes and goes; what is kept only grows.
    assert min(held[4:]) <= min(held[:4]), held
