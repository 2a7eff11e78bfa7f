"""Rules read and write text: preconditions, refusals, composition. No torch."""

import ast
import dataclasses
import subprocess
import sys

import pytest

from pike_hpc.proposers.rules import (
    RULES,
    DeclinedByRule,
    Rewritten,
    Toolchain,
    is_stock,
    portfolio,
    probe_toolchain,
    rewrite,
)
from pike_hpc.records import UsageError
from pike_hpc.tasks import load_suite

FULL = Toolchain(compiler="/usr/bin/g++", python_headers=True, cpu_bfloat16=True)
BARE = Toolchain(compiler=None, python_headers=False)
SOURCES = {task.id: task.source for task in load_suite("level3-pike").tasks}
DEVICES = ("cpu", "nvidia-h200")


def source_of(text: str, *rules: str, device: str = "cpu") -> str:
    made = rewrite(text, rules, toolchain=FULL, device_kind=device)
    assert isinstance(made, Rewritten), made
    return made.source


def reason_of(text: str, *rules: str, toolchain: Toolchain = FULL, device: str = "cpu") -> str:
    made = rewrite(text, rules, toolchain=toolchain, device_kind=device)
    assert isinstance(made, DeclinedByRule), made.source
    assert made.rule in rules
    return made.reason


NO_CONVOLUTION = {"1", "2", "31", "33", "43", "44", "48", "49", "50"}
APPLIES = {
    "identity": set(SOURCES),
    "strict_fp32": set(),
    "sdpa": {"31", "43", "44"},
    "packed_linear": {"17"},
    # 4, 6, 17, 29 and 30 have no BatchNorm after convolutions, in 13 and 14 it comes first.
    "fold_batch_norm": set(SOURCES) - NO_CONVOLUTION - {"4", "6", "13", "14", "17", "29", "30"},
    "pool_first": {"13", "15", "16"},
    "channels_last": set(SOURCES) - NO_CONVOLUTION,
    "half_body": set(SOURCES) - {"33"},
    "compile_default": set(SOURCES),
    "compile_max_autotune": set(SOURCES),
    "compile_reduce_overhead": set(),
    "compile_tensorrt": set(),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_applies_to_the_tasks_that_meet_its_precondition(rule):
    applies = {
        task_id
        for task_id, source in SOURCES.items()
        if isinstance(rewrite(source, [rule], toolchain=FULL, device_kind="cpu"), Rewritten)
    }
    assert applies == APPLIES[rule]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("task_id", SOURCES)
def test_every_composition_gives_python_with_modelnew_that_repeats_exactly(task_id, device):
    made = 0
    for rules in portfolio(device):
        first = rewrite(SOURCES[task_id], rules, toolchain=FULL, device_kind=device)
        again = rewrite(SOURCES[task_id], rules[::-1], toolchain=FULL, device_kind=device)
        assert first == again
        if isinstance(first, Rewritten):
            made += 1
            defined = {n.name for n in ast.parse(first.source).body if isinstance(n, ast.ClassDef)}
            assert {"Model", "ModelNew"} <= defined
            assert all(name in ast.get_docstring(ast.parse(first.source)) for name in rules)
    assert 2 <= made <= 14


@pytest.mark.parametrize("device", DEVICES)
def test_the_portfolio_is_short_names_rules_and_repeats_nothing(device):
    compositions = portfolio(device)
    assert all(set(rules) <= set(RULES) for rules in compositions)
    assert len({frozenset(rules) for rules in compositions}) == len(compositions)
    assert all(list(rules) == [name for name in RULES if name in rules] for rules in compositions)
    assert compositions[0] == ("identity",)
    stock = [rules for rules in compositions if is_stock(rules)]
    assert ("compile_default",) in stock
    assert not any({"sdpa", "fold_batch_norm", "packed_linear"} & set(rules) for rules in stock)


def test_tensorrt_is_for_a_gpu_where_it_is_installed():
    installed = dataclasses.replace(FULL, tensorrt=True)
    made = rewrite(
        SOURCES["4"], ["compile_tensorrt"], toolchain=installed, device_kind="nvidia-h200"
    )
    assert isinstance(made, Rewritten)
    assert 'backend="tensorrt"' in made.source
    assert "import torch_tensorrt" in made.source
    gpu = {"toolchain": FULL, "device": "nvidia-h200"}
    assert "not installed" in reason_of(SOURCES["4"], "compile_tensorrt", **gpu)
    cpu = reason_of(SOURCES["4"], "compile_tensorrt", toolchain=installed)
    assert "needs a GPU" in cpu
    both = reason_of(SOURCES["4"], "compile_default", "compile_tensorrt", device="nvidia-h200")
    assert "chosen already" in both


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_compiler_every_task_still_has_a_control(device):
    for source in SOURCES.values():
        made = [rewrite(source, r, toolchain=BARE, device_kind=device) for r in portfolio(device)]
        assert any(isinstance(each, Rewritten) for each in made)


def test_the_reference_stays_as_it_is_where_no_rule_edits_it():
    source = source_of(SOURCES["8"], "fold_batch_norm", "channels_last")
    body = SOURCES["8"].split("import torch.nn as nn\n")[1]
    assert body.strip() in source


def test_the_docstring_names_task_rules_and_reference():
    made = rewrite(
        SOURCES["4"], ["identity"], toolchain=FULL, device_kind="cpu", task_name="level3-pike/4"
    )
    text = ast.get_docstring(ast.parse(made.source))
    assert text.startswith("level3-pike/4, rewritten by rule:identity.")
    assert "Reference: LeNet-5" in text


def test_an_unknown_rule_is_a_usage_error_that_names_the_valid_ones():
    with pytest.raises(UsageError, match=r"no rule fold_bn\n  valid: identity, strict_fp32, sdpa"):
        rewrite(SOURCES["4"], ["fold_bn"], toolchain=FULL, device_kind="cpu")


def test_compile_declines_and_names_the_packages():
    reason = reason_of(SOURCES["4"], "compile_default", toolchain=BARE)
    assert "g++" in reason
    assert "python3-dev" in reason
    only_headers = Toolchain(compiler="/usr/bin/g++", python_headers=False)
    assert "g++" not in reason_of(SOURCES["4"], "compile_default", toolchain=only_headers)


def test_two_modes_of_compile_decline():
    assert "already" in reason_of(SOURCES["4"], "compile_default", "compile_max_autotune")


def test_graphs_need_a_gpu_and_their_output_is_copied():
    assert "CPU" in reason_of(SOURCES["4"], "compile_reduce_overhead")
    assert ".clone()" in source_of(SOURCES["4"], "compile_reduce_overhead", device="nvidia-h200")
    assert ".clone()" in source_of(
        SOURCES["4"], "channels_last", "compile_max_autotune", device="nvidia-h200"
    )
    assert ".clone()" not in source_of(SOURCES["4"], "compile_max_autotune")


def test_graphs_stay_away_from_state_that_is_kept_between_calls():
    for mode in ("compile_reduce_overhead", "compile_max_autotune"):
        assert "self.hidden is kept" in reason_of(SOURCES["33"], mode, device="nvidia-h200")


def test_half_takes_the_precision_that_the_device_multiplies():
    assert "torch.float16" in source_of(SOURCES["4"], "half_body", device="nvidia-h200")
    assert "torch.bfloat16" in source_of(SOURCES["4"], "half_body")
    plain = Toolchain(compiler="g++", python_headers=True, cpu_bfloat16=False)
    assert "bfloat16" in reason_of(SOURCES["4"], "half_body", toolchain=plain)
    assert "self.hidden" in reason_of(SOURCES["33"], "half_body")


def test_batch_norm_that_only_precedes_a_convolution_is_not_folded():
    assert "directly after" in reason_of(SOURCES["13"], "fold_batch_norm")


@pytest.mark.parametrize(
    "forward",
    [
        "return self.n(self.c(x))",
        "y = self.c(x)\n        return self.n(y)",
        "x = self.c(x)\n        x = torch.relu(self.n(x))\n        return x",
    ],
)
def test_batch_norm_after_a_convolution_is_seen_however_it_is_written(forward):
    assert "fold_batch_norm" in source_of(CONV_NORM.format(forward=forward), "fold_batch_norm")


@pytest.mark.parametrize(
    "forward", ["return self.c(self.n(x))", "y = self.c(x)\n        return self.n(x) + y"]
)
def test_batch_norm_elsewhere_is_not_taken_for_one(forward):
    assert reason_of(CONV_NORM.format(forward=forward), "fold_batch_norm")


CONV_NORM = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 3, 3)
        self.n = nn.BatchNorm2d(3)
    def forward(self, x):
        {forward}
def get_inputs(): return []
"""

ATTENTION = """
import math
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 8 ** -0.5
        self.temperature = nn.Parameter(torch.ones(1))
        self.register_buffer("bias", torch.tril(torch.ones(9, 9)).view(1, 1, 9, 9))
        self.register_buffer("band", torch.tril(torch.ones(9, 9), diagonal=1))
        self.drop = nn.Dropout(0.1)
    def forward(self, q, k, v):
        {forward}
def get_inputs(): return []
"""


@pytest.mark.parametrize(
    ("forward", "call"),
    [
        (
            "return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1) @ v",
            "scale=1.0 / (math.sqrt(8))",
        ),
        ("return torch.matmul(torch.softmax(q @ k.mT, -1), v)", "scale=1.0,"),
        (
            "a = (q @ k.transpose(2, 3) * self.scale).softmax(dim=-1)\n        return a @ v",
            "scale=self.scale",
        ),
        (
            "T = q.size(2)\n        a = q @ k.transpose(-2, -1)\n"
            "        a = a.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))\n"
            "        a = self.drop(F.softmax(a, dim=-1))\n        return a @ v",
            "is_causal=True",
        ),
        (
            "a = q @ k.transpose(-2, -1)\n"
            "        a = a.masked_fill(self.band == 0, float('-inf'))\n"
            "        return F.softmax(a, dim=-1) @ v",
            "attn_mask=self.band != 0",
        ),
        (
            "T = q.size(2)\n        a = q @ k.transpose(-2, -1)\n"
            "        a = a.masked_fill(self.band[:T, :T] == 0, float('-inf'))\n"
            "        return F.softmax(a, dim=-1) @ v",
            "attn_mask=self.band[:T, :T] != 0",
        ),
    ],
)
def test_attention_is_recognised_however_it_is_written(forward, call):
    source = source_of(ATTENTION.format(forward=forward), "sdpa")
    assert "scaled_dot_product_attention" in source
    assert call in source
    assert "softmax(" not in source.replace("softmax(QK", "")


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(q @ k.transpose(-2, -1)) @ v",
        "return F.softmax(q @ k.transpose(-2, -1), dim=-2) @ v",
        "return F.softmax(q @ k.transpose(-2, -1) * self.temperature, dim=-1) @ v",
        "return F.softmax(q @ k, dim=-1) @ v",
        "a = F.softmax(q @ k.mT, dim=-1)\n        return a @ v + a.mean()",
        "a = q @ k.mT\n        b = a.mean()\n        a = F.softmax(a, dim=-1)\n"
        "        a = a @ v\n        return a + b",
        "a = F.softmax(q @ k.mT, dim=-1)\n        q = q + 1\n        return a @ v + q",
    ],
)
def test_what_is_not_plain_attention_is_left_alone(forward):
    assert "softmax" in reason_of(ATTENTION.format(forward=forward), "sdpa")


PARALLEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 5)
        self.k = nn.Linear(4, 6)
        self.z = nn.Linear(4, 6, bias=False)
        self.c = nn.Conv2d(4, 4, 3)
        self.d = nn.Conv2d(4, 4, 3, padding=1, stride=2)
        self.e = nn.Conv2d(4, 4, 1)
    def forward(self, x):
        {forward}
def get_inputs(): return []
"""


def test_layers_on_one_input_are_packed():
    source = source_of(
        PARALLEL.format(forward="a = self.q(x)\n        return a, self.k(x)"), "packed_linear"
    )
    assert 'packed_linear(self, ("q", "k"), x).split(' in source
    assert "a = q_output" in source


def test_a_concatenation_in_order_goes_with_the_layers():
    cat = "return torch.cat([torch.relu(self.q(x)), torch.relu(self.k(x))], dim=-1)"
    source = source_of(PARALLEL.format(forward=cat), "packed_linear")
    assert 'return torch.relu(packed_linear(self, ("q", "k"), x))' in source


@pytest.mark.parametrize(
    "forward",
    [
        "x = self.q(x)\n        return self.k(x)",
        "a = self.q(x)\n        x = x + 1\n        return a + self.k(x)",
        "return self.q(x) + self.q(x)",
        "return self.q(x), self.z(x)",
        "return self.c(x), self.e(x)",
        "return self.d(x), self.e(x)",
        "return [self.q(x) for x in x], self.k(x)",
    ],
)
def test_layers_that_differ_are_not_packed(forward):
    assert "no two layers" in reason_of(PARALLEL.format(forward=forward), "packed_linear")


def test_names_that_the_reference_uses_itself_are_not_taken():
    taken = SOURCES["4"].replace("def get_inputs", "def cast(x):\n    return x\n\n\ndef get_inputs")
    assert "cast" in reason_of(taken, "half_body")
    assert isinstance(
        rewrite(taken, ["channels_last"], toolchain=FULL, device_kind="cpu"), Rewritten
    )


def test_future_imports_stay_first_and_a_broken_reference_declines():
    source = source_of(
        "from __future__ import annotations\n"
        + CONV_NORM.format(forward="return self.n(self.c(x))"),
        "fold_batch_norm",
    )
    compile(source, "candidate.py", "exec")
    assert "no Python" in reason_of("class Model:\n def", "identity")


def test_a_model_without_a_forward_of_its_own_declines():
    text = "import torch.nn as nn\nclass Base(nn.Module): ...\nclass Model(Base): ...\n"
    assert "no forward" in reason_of(text, "compile_default")


def test_the_toolchain_is_probed_from_the_machine(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu avx2 amx_bf16\n")
    assert probe_toolchain(cpuinfo).cpu_bfloat16
    cpuinfo.write_text("flags : fpu avx2\n")
    assert not probe_toolchain(cpuinfo).cpu_bfloat16
    assert not probe_toolchain(tmp_path / "absent").cpu_bfloat16


def test_proposing_reaches_no_torch():
    code = (
        "import sys; from pike_hpc.proposers.rules import *; from pike_hpc.tasks import *; "
        "s = load_suite('level3-pike').tasks[0]; "
        "rewrite(s.source, ['half_body'], toolchain=probe_toolchain(), device_kind='cpu'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
