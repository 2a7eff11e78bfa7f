"""Candidates as a search makes them: two in five with inline CUDA, the rest Triton or torch, many
of them wrong, crashing, not compiling or hanging. Written here, honest where they are meant to be.

Each is a task's own source with an operation replaced, and a ModelNew on top. All run on CUDA
(torch 2.11, Triton 3.6) and, with C++ or torch in the place of kernels, on a CPU.
"""

import functools
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from mixture_kernels import inline_bias, inline_rows, inline_unary, triton_rows, triton_unary

from pike_hpc.records import EvalStatus
from pike_hpc.tasks import effective_source, find_task

PASS = frozenset({EvalStatus.PASSED})
WRONG = frozenset({EvalStatus.WRONG_RESULT, EvalStatus.WRONG_STRUCTURE})
ERROR = frozenset({EvalStatus.RUNTIME_ERROR})
BUILD = frozenset({EvalStatus.BUILD_ERROR})
HANG = frozenset({EvalStatus.TIMEOUT})
HANG_TIMEOUT_S = 30.0
"""Of the requests for hanging programs: the site's own choice in a real run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One way to write a candidate; `make(number)` is its text, never twice the same to a build."""

    name: str
    kind: str
    """inline, triton, compile, torch or broken."""
    task: str
    expected: frozenset
    make: Callable[[int], str]
    on_cpu: bool = True
    """Whether its task is small enough for a CPU."""


PLAIN = """

class ModelNew(Model):
    pass
"""
RELU = "v > 0.f ? v : 0.f"
TANH = "tanhf(v)"
GELU = "0.5f * v * (1.f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)))"


@functools.cache
def task_of(key):
    """The task of that key: its suite is read once, not for each of a thousand requests."""
    return find_task(key)


def replaced(task, old, new, before, after=PLAIN):
    """The task's text with `old` replaced by `new`, `before` in front, and a ModelNew."""
    text = effective_source(task_of(task))
    if old not in text:
        raise ValueError(f"{task} has no {old!r}")
    return f"import torch\n{before}\n{text.replace(old, new)}\n{after}"


def wrapped(task, body, before=""):
    """The task's text and a ModelNew with this body."""
    text = effective_source(task_of(task))
    return f"{text}\n{before}\n\nclass ModelNew(Model):\n{textwrap.indent(body.strip(), '    ')}\n"


def module_of(op):
    """An activation module around a function, for `nn.ReLU()` and the like."""
    return f"""
class Op(torch.nn.Module):
    def forward(self, x):
        return {op}(x)
"""


def inline_module(task, old, expr):
    """Activation modules by an inline kernel."""
    return lambda n: replaced(task, old, "Op()", inline_unary(expr, n) + module_of("op"))


def inline_call(task, old, expr):
    """Calls of an activation by an inline kernel."""
    return lambda n: replaced(task, old, "op(", inline_unary(expr, n))


def triton_module(task, old, expr, plain):
    """Activation modules by a Triton kernel."""
    return lambda n: replaced(task, old, "Op()", triton_unary(expr, plain, n) + module_of("op"))


BIAS_FORWARD = """
def forward(self, x):
    layers = list(self.network)
    for linear in layers[:-1:2]:
        x = op(torch.nn.functional.linear(x, linear.weight), linear.bias)
    return layers[-1](x)
"""
COMPILED = """
def __init__(self, *args):
    super().__init__(*args)
    self.fast = torch.compile(super().forward, mode="MODE")

def forward(self, *args):
    return self.fast(*args)
"""
HALF = """
def forward(self, *args):
    kind = args[0].device.type
    with torch.autocast(kind, dtype=torch.float16 if kind == "cuda" else torch.bfloat16):
        return super().forward(*args).float()
"""
CHANNELS_LAST = """
def forward(self, x):
    return super().forward(x.contiguous(memory_format=torch.channels_last)).contiguous()
"""
GRAPH = """
graph = None

def forward(self, x):
    if not x.is_cuda:
        return super().forward(x)
    if self.graph is None:
        self.given = x.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                super().forward(self.given)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.answer = super().forward(self.given)
    self.given.copy_(x)
    self.graph.replay()
    return self.answer.clone()
"""
TF32 = """
def forward(self, *args):
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    return super().forward(*args)
"""


def by_torch(task, body):
    """A setting of torch around the task's own model."""
    return lambda n: wrapped(task, body, f"# {n}")


def raising(task, where):
    """A program that raises, as most that fail do."""
    head = "def __init__(self, *args):\n    super().__init__(*args)\n"
    bodies = {
        "constructor": head + "    self.scale = torch.ones(3) @ torch.ones(4)",
        "call": "def forward(self, x, *rest):\n    return super().forward(x[..., :-1], *rest)",
        "abort": "def forward(self, *args):\n    import os\n    os.abort()",
        "hang": "def forward(self, *args):\n    while True:\n        pass",
        "wrong": "def forward(self, *args):\n    return super().forward(*args) * 1.05",
        "stale": "kept = None\n\ndef forward(self, *args):\n    if self.kept is None:\n"
        "        self.kept = super().forward(*args)\n    return self.kept",
    }
    return lambda n: wrapped(task, bodies[where], f"# {n}")


def unparsable(task):
    """Cut off in the middle, as an answer that ran out of tokens."""

    def make(number):
        text = effective_source(task_of(task))
        return f"# {number}\n{text}\nclass ModelNew(Model):\n    def forward(self, x:\n"

    return make


P = "level3-pike/"
S = "F.softmax(att, dim=-1)"
_ROWS = (
    # name, kind, task, make, fits a CPU
    (
        "bias and relu",
        "inline",
        P + "1",
        lambda n: wrapped(P + "1", BIAS_FORWARD, inline_bias(RELU, n)),
        True,
    ),
    ("relu", "inline", P + "4", inline_call(P + "4", "F.relu(", RELU), True),
    ("tanh", "inline", P + "33", inline_module(P + "33", "nn.Tanh()", TANH), True),
    ("relu", "inline", P + "9", inline_module(P + "9", "nn.ReLU()", RELU), False),
    ("relu", "inline", P + "13", inline_module(P + "13", "nn.ReLU()", RELU), False),
    ("relu", "inline", P + "17", inline_module(P + "17", "nn.ReLU()", RELU), False),
    (
        "softmax",
        "inline",
        P + "43",
        lambda n: replaced(P + "43", S, "op(att)", inline_rows(n)),
        False,
    ),
    ("gelu", "inline", P + "44", inline_call(P + "44", 'self.mlp["act"](', GELU), False),
    (
        "relu",
        "triton",
        P + "1",
        triton_module(P + "1", "nn.ReLU()", "tl.maximum(v, 0.0)", "torch.relu(x)"),
        True,
    ),
    (
        "relu",
        "triton",
        P + "17",
        triton_module(P + "17", "nn.ReLU()", "tl.maximum(v, 0.0)", "torch.relu(x)"),
        False,
    ),
    (
        "softmax",
        "triton",
        P + "43",
        lambda n: replaced(P + "43", S, "op(att)", triton_rows(n)),
        False,
    ),
    (
        "softmax",
        "triton",
        P + "44",
        lambda n: replaced(P + "44", S, "op(att)", triton_rows(n)),
        False,
    ),
    ("tf32", "torch", P + "33", by_torch(P + "33", TF32), True),
    ("compile", "compile", P + "4", by_torch(P + "4", COMPILED.replace("MODE", "default")), True),
    (
        "compile, graphs",
        "compile",
        P + "9",
        by_torch(P + "9", COMPILED.replace("MODE", "reduce-overhead")),
        False,
    ),
    ("half", "torch", P + "43", by_torch(P + "43", HALF), False),
    ("tf32", "torch", P + "44", by_torch(P + "44", TF32), False),
    ("channels last", "torch", P + "9", by_torch(P + "9", CHANNELS_LAST), False),
    ("graph", "torch", P + "4", by_torch(P + "4", GRAPH), True),
    (
        "compile",
        "compile",
        "level0/1",
        by_torch("level0/1", COMPILED.replace("MODE", "default")),
        False,
    ),
    ("tf32", "torch", P + "1", by_torch(P + "1", TF32), True),
)
_BROKEN = (
    ("wrong by 5 %", P + "4", raising(P + "4", "wrong"), WRONG),
    ("wrong by 5 %", P + "1", raising(P + "1", "wrong"), WRONG),
    (
        "wrong sign",
        P + "1",
        lambda n: wrapped(P + "1", BIAS_FORWARD, inline_bias("v < 0.f ? v : 0.f", n)),
        WRONG,
    ),
    ("first answer again", P + "33", raising(P + "33", "stale"), WRONG),
    ("raises when made", P + "1", raising(P + "1", "constructor"), ERROR),
    ("raises when called", P + "4", raising(P + "4", "call"), ERROR),
    ("raises when called", P + "33", raising(P + "33", "call"), ERROR),
    ("aborts", P + "4", raising(P + "4", "abort"), ERROR),
    (
        "C++ that does not compile",
        P + "1",
        lambda n: wrapped(P + "1", BIAS_FORWARD, inline_bias("v +* 1", n)),
        BUILD,
    ),
    (
        "C++ that does not compile",
        P + "4",
        inline_call(P + "4", "F.relu(", "no_such_function(v)"),
        BUILD,
    ),
    ("Python that does not parse", P + "1", unparsable(P + "1"), BUILD),
    ("hangs", P + "4", raising(P + "4", "hang"), HANG),
)
"""A bit more than a third, in the order of how often model-written programs fail that way."""

PROGRAMS = tuple(
    Program(name=name, kind=kind, task=task, make=make, expected=PASS, on_cpu=small)
    for name, kind, task, make, small in _ROWS
) + tuple(
    Program(name=name, kind="broken", task=task, make=make, expected=expected)
    for name, task, make, expected in _BROKEN
)


def deck(device, kinds=None):
    """The programs for a torch device, of these kinds alone where given.

    Without a compiler's kinds the broken programs that need one are left out too.
    """
    chosen = [p for p in PROGRAMS if p.on_cpu or device == "cuda"]
    if kinds is not None:
        chosen = [p for p in chosen if p.kind in kinds]
        if "inline" not in kinds:
            chosen = [p for p in chosen if "load_inline" not in p.make(0)]
    if not chosen:
        raise ValueError(f"no programs of {kinds} for {device}")
    return chosen


def dealt(programs, seed):
    """(program, number) for ever: the deck shuffled anew each time, no number twice."""
    rng, number = random.Random(seed), 0
    while True:
        for program in rng.sample(programs, len(programs)):
            number += 1
            yield program, number
