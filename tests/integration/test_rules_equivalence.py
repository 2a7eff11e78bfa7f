"""What rules write computes what the reference computes, from the reference's own weights."""

import itertools
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.proposers.rules import (  # noqa: E402
    RULES,
    Rewritten,
    Toolchain,
    portfolio,
    probe_toolchain,
    rewrite,
)
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks import effective_source, find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.torch]

FULL = Toolchain(compiler="g++", python_headers=True, cpu_bfloat16=True)
SMALL = {
    "1": {},
    "4": {"batch_size": 2},
    "8": {"batch_size": 2, "height": 12, "width": 10},
    "13": {"batch_size": 2, "height": 12, "width": 10},
    "17": {"batch_size": 2, "height": 12, "width": 10},
    "20": {"batch_size": 2, "image_size": 64},
    "33": {"batch_size": 2},
    "43": {"batch_size": 2, "seq_len": 24},
}
EXACT, HALF = 1e-4, 0.05
"""Relative errors: of another order of summation, and of 16 bits."""

MODULE_NUMBERS = itertools.count()


def small_task(task_id: str) -> Task:
    return find_task(f"level3-pike/{task_id}", shape_overrides=SMALL[task_id])


def model_new(source: str, init_inputs: list) -> torch.nn.Module:
    """ModelNew of a candidate, in a module that torch.compile can find by its name."""
    module = types.ModuleType(f"candidate_{next(MODULE_NUMBERS)}_of_rules_tests")
    sys.modules[module.__name__] = module
    exec(compile(source, f"{module.__name__}.py", "exec"), module.__dict__)
    return module.ModelNew(*init_inputs)


def reference_in(loaded, seed: int) -> torch.nn.Module:
    """The reference with BatchNorm statistics of its own signals, so that none of it vanishes."""
    model = loaded.make_model(seed).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
            model(torch.cat([loaded.inputs(100 + k)[0] for k in range(4)]))
    return model.eval()


def relative_error(candidate, reference, inputs) -> float:
    with torch.inference_mode():
        expected = reference(*[x.clone() for x in inputs])
        outputs = [candidate(*[x.clone() for x in inputs]) for _ in range(2)]
    assert all(y.shape == expected.shape and y.dtype == expected.dtype for y in outputs)
    return max(((y - expected).norm() / expected.norm()).item() for y in outputs)


def compositions():
    """Single rules and the portfolio's compositions, where they apply; compilation left out."""
    wanted = {(name,) for name in RULES} | set(portfolio("cpu")) | set(portfolio("nvidia-h200"))
    plain = {tuple(n for n in rules if not RULES[n].needs_compiler) for rules in wanted} - {()}
    for task_id in SMALL:
        source = effective_source(small_task(task_id))
        for rules in sorted(plain):
            made = rewrite(source, rules, toolchain=FULL, device_kind="cpu")
            # 16 bits are not equivalent on task 20, a deep network with random weights.
            if isinstance(made, Rewritten) and not ("half_body" in rules and task_id == "20"):
                yield pytest.param(task_id, made.source, rules, id=f"{task_id}-{'+'.join(rules)}")


@pytest.mark.parametrize(("task_id", "source", "rules"), list(compositions()))
def test_a_candidate_computes_what_the_reference_does(task_id, source, rules):
    loaded = build(small_task(task_id))
    reference = reference_in(loaded, seed=1)
    candidate = model_new(source, loaded.init_inputs())
    candidate.load_state_dict(reference.state_dict(), strict=True)
    error = relative_error(candidate.eval(), reference, loaded.inputs(5))
    assert error <= (HALF if "half_body" in rules else EXACT)
    assert list(candidate.state_dict()) == list(reference.state_dict())


@pytest.mark.parametrize(
    ("task_id", "rules"),
    [
        ("8", ("fold_batch_norm", "channels_last")),
        ("13", ("pool_first",)),
        ("17", ("packed_linear",)),
        ("43", ("sdpa", "half_body")),
    ],
)
def test_a_candidate_in_training_is_the_reference(task_id, rules):
    loaded = build(small_task(task_id))
    source = effective_source(small_task(task_id))
    made = rewrite(source, rules, toolchain=FULL, device_kind="cpu")
    candidate = model_new(made.source, loaded.init_inputs()).train()
    reference = loaded.make_model(3).train()
    candidate.load_state_dict(reference.state_dict(), strict=True)
    inputs = loaded.inputs(5)
    torch.testing.assert_close(candidate(*inputs), reference(*inputs))
    candidate(*inputs).sum().backward()
    assert all(p.grad is not None for p in candidate.parameters())


def test_folding_really_removes_the_batch_norms():
    loaded = build(small_task("20"))
    made = rewrite(
        effective_source(loaded.task), ["fold_batch_norm"], toolchain=FULL, device_kind="cpu"
    )
    candidate = model_new(made.source, loaded.init_inputs()).eval()
    candidate.load_state_dict(reference_in(loaded, 1).state_dict())
    namespace = sys.modules[type(candidate).__module__]
    folded = namespace.fold_batch_norm(namespace.Model(*loaded.init_inputs()).eval())
    kinds = [type(m).__name__ for n, m in folded.named_modules()]
    called = [
        type(folded.get_submodule(node.target)).__name__
        for node in folded.graph.nodes
        if node.op == "call_module"
    ]
    assert "BatchNorm2d" in kinds
    assert called.count("BatchNorm2d") == 0
    assert called.count("Conv2d") == 52


PACKED = """
import torch
from torch import nn
class Heads(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, 2 * width)
    def forward(self, x):
        q = torch.tanh(self.query(x))
        k, v = self.key(x), self.value(x)
        return torch.cat([q + k, v], dim=-1)
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = Heads(width)
        self.second = Heads(3 * width)
        self.attention = nn.MultiheadAttention(9 * width, 3)
    def forward(self, x):
        x = self.second(self.first(x))
        y, _ = self.attention(x, x, x)
        return y
def get_inputs():
    return [torch.randn(5, 2, 4)]
def get_init_inputs():
    return [4]
"""


@pytest.mark.parametrize(
    "rules",
    [("packed_linear",), ("sdpa",), ("sdpa", "packed_linear"), ("packed_linear", "half_body")],
)
def test_layers_inside_submodules_are_packed_each_with_its_own_weights(rules):
    loaded = build(Task(suite="s", id="1", name="Packed", source=PACKED))
    made = rewrite(PACKED, rules, toolchain=FULL, device_kind="cpu")
    reference = loaded.make_model(2).eval()
    candidate = model_new(made.source, [4]).eval()
    candidate.load_state_dict(reference.state_dict(), strict=True)
    error = relative_error(candidate, reference, loaded.inputs(5))
    assert error <= (HALF if "half_body" in rules else 1e-5)
    assert ("need_weights=False" in made.source) == ("sdpa" in rules)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    ("task_id", "rules"),
    [
        ("4", ("compile_default",)),
        ("17", ("packed_linear", "channels_last", "compile_default")),
    ],
)
def test_a_compiled_candidate_is_right_for_two_sets_of_weights(task_id, rules):
    toolchain = probe_toolchain()
    if toolchain.lacks:
        pytest.skip(f"torch.compile needs {toolchain.lacks}")
    loaded = build(small_task(task_id))
    made = rewrite(effective_source(loaded.task), rules, toolchain=toolchain, device_kind="cpu")
    models = []
    for seed in (1, 2):
        reference = reference_in(loaded, seed)
        candidate = model_new(made.source, loaded.init_inputs())
        candidate.load_state_dict(reference.state_dict(), strict=True)
        models.append((candidate.eval(), reference))
    # As in a sandbox's environment.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        for candidate, reference in (*models, models[0]):
            assert relative_error(candidate, reference, loaded.inputs(5)) <= EXACT
