"""How a runner calls programs, and how these take their weights: in the test's own process."""

import dataclasses
import tempfile

import pytest

torch = pytest.importorskip("torch")

from builders.one_runner import OneRunner  # noqa: E402
from builders.tiny_task import HEAD, TASK, TASK_SOURCE, forward  # noqa: E402

from pike_hpc.evaluate.runner import Code, Op, Source  # noqa: E402

pytestmark = pytest.mark.torch

NEAR = 1e-4


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts a runner for a program, which has not loaded it yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runners, dtype = [], torch.get_default_dtype()

    def start(source, task=TASK, **options):
        runners.append(OneRunner(task, source, **options))
        return runners[-1]

    yield start
    torch.set_default_dtype(dtype)
    for runner in runners:
        runner.close()


FUNCTION = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x, weight, bias)
    @staticmethod
    def backward(ctx, grad):
        return None, None, None
"""

CALLS = {
    "the gradient of its own sum": forward(
        """
with torch.enable_grad():
    leaf = x.detach().requires_grad_()
    ones, = torch.autograd.grad(leaf.sum(), leaf)
return self.right(x * ones)"""
    ),
    "its input asked for a gradient": forward("return self.right(x.requires_grad_())"),
    "an answer that has a graph": forward("with torch.enable_grad():\n    return self.right(x)"),
    "weights that are told by their version": forward(
        """
mark = self.first.weight._version + x._version + (x + 1)._version
return self.right(x) + 0 * mark"""
    ),
    "a cached tensor that is written with gradients on": forward(
        """
if not hasattr(self, "room"):
    self.room = torch.empty_like(x)
with torch.enable_grad():
    self.room.copy_(x)
    return self.right(self.room).detach()"""
    ),
    "a parameter made by the first call and used by a thread": forward(
        """
import concurrent.futures
if not hasattr(self, "scale"):
    self.scale = nn.Parameter(torch.ones(x.shape[1]))
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    parts = [pool.submit(self.right, half * self.scale) for half in x.chunk(2)]
return torch.cat([part.result() for part in parts])"""
    ),
    "a function of its own": forward(
        """
h = Linear.apply(x, self.first.weight, self.first.bias)
with torch.enable_grad():
    h = Linear.apply(x, self.first.weight, self.first.bias)
return self.second(torch.relu(self.norm(h)))""",
        before="import torch, torch.nn as nn" + FUNCTION.replace("Twice", "Linear"),
    ),
    "inference mode of its own": forward(
        """
with torch.inference_mode():
    if not hasattr(self, "folded"):
        self.folded = True
        self.first.weight = nn.Parameter(self.first.weight.clone(), requires_grad=False)
    return self.right(x)"""
    ),
    "checkpoints": forward(
        "return torch.utils.checkpoint.checkpoint(self.right, x, use_reentrant=False)",
        before="import torch.utils.checkpoint",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_made_as_under_no_grad(started, name):
    runner = started(CALLS[name])
    assert runner.load() is Code.OK
    assert [runner.error() < NEAR for _ in range(3)] == [True] * 3
    assert runner.do(Op.NULL) is Code.OK
    assert runner.do(Op.AGAIN) is Code.OK
    assert runner.do(Op.PROFILE) is Code.OK


COUNTS = HEAD.replace(
    "    def right",
    """        with torch.MODE():
            self.register_buffer("count", torch.zeros(1), persistent=False)
            self.plain = torch.zeros(1)

    def right""",
)


@pytest.mark.parametrize("mode", ["no_grad", "enable_grad", "inference_mode"])
def test_what_a_call_left_is_put_back_however_it_was_made(started, mode):
    call = """
    def forward(self, x):
        with torch.MODE():
            self.count += 1
            self.plain.add_(1)
        return self.right(x) + (self.count - 1) + (self.plain - 1)
"""
    runner = started((COUNTS + call).replace("MODE", mode), resets=True)
    assert runner.load() is Code.OK
    for _ in range(3):
        assert runner.do(Op.RESET) is Code.OK
        assert runner.error() < NEAR


HOLDS = {
    "list": ("[torch.zeros(1), 0]", "self.own[0].add_(1); self.own[1] += 1", "self.own[0]"),
    "dict": ("{'a': {'h': torch.zeros(1)}}", "self.own['a']['h'] = self.own['a']['h'] + 1", ""),
    "tuple": ("(torch.zeros(1), None)", "self.own = (self.own[0] + 1, None)", "self.own[0]"),
    "cycle": (
        "[torch.zeros(1)]; self.own.append(self.own)",
        "self.own[1][0] = 1 + self.own[0]",
        "",
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_a_call_left_in_containers_is_put_back(started, name):
    own, step, count = HOLDS[name]
    count = count or {"dict": "self.own['a']['h']", "cycle": "self.own[0]"}[name]
    holds = HEAD.replace("    def right", f"        self.own = {own}\n\n    def right")
    call = (
        f"    def forward(self, x):\n        {step}\n        return self.right(x) + ({count} - 1)\n"
    )
    runner = started(holds + call, resets=True)
    assert runner.load() is Code.OK
    for _ in range(3):
        assert runner.do(Op.RESET) is Code.OK
        assert runner.error() < NEAR


def test_what_is_made_by_a_call_stays_in_a_container_of_its_own(started):
    packs = HEAD.replace(
        "    def right", "        self.packs, self.made = [None], {}\n\n    def right"
    )
    call = """
    def forward(self, x):
        if self.packs[0] is None:
            assert not self.made
            self.packs[0] = self.made["w"] = self.first.weight.clone()
        return self.right(x)
"""
    runner = started(packs + call, resets=True)
    assert runner.load() is Code.OK
    for _ in range(2):
        assert runner.do(Op.RESET) is Code.OK
        assert runner.error() < NEAR


def test_a_parameter_that_a_call_makes_is_no_weight_that_is_missing(started):
    runner = started(CALLS["a parameter made by the first call and used by a thread"])
    assert runner.load() is Code.OK
    assert runner.error() < NEAR
    assert runner.follows()


BARE = """
import torch, torch.nn as nn
import torch.nn.functional as F
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        def empty(*shape):
            return nn.Parameter(torch.empty(shape))
        two = 2 * width
        self.w, self.b = empty(two, width), empty(two)
        self.gain, self.shift = empty(two), empty(two)
        self.register_buffer("norm_mean", torch.empty(two))
        self.register_buffer("norm_var", torch.empty(two))
        self.v, self.c = empty(width, two), empty(width)
        self.ready = False
    def forward(self, x):
        norm = self.norm_mean, self.norm_var, self.gain, self.shift
        h = F.batch_norm(F.linear(x, self.w, self.b), *norm)
        return F.linear(torch.relu(h), self.v, self.c)
"""
"""Every weight under a name of its own, in memory that its constructor leaves unwritten."""

FUSED = """
import torch, torch.nn as nn
import torch.nn.functional as F
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wb = nn.Parameter(torch.empty(2 * width, width + 1))
        self.vc = nn.Parameter(torch.empty(width, 2 * width + 1))
    def forward(self, x):
        h = torch.relu(F.linear(x, self.wb[:, :-1], self.wb[:, -1]))
        return F.linear(h, self.vc[:, :-1], self.vc[:, -1])
"""
"""Its norm is folded and its weights have no place: what `MAKES` says must be done with them."""

MAKES = """
        gain = S["norm.weight"] / torch.sqrt(S["norm.running_var"] + 1e-5)
        bias = (S["first.bias"] - S["norm.running_mean"]) * gain + S["norm.bias"]
        wb = torch.cat([S["first.weight"] * gain[:, None], bias[:, None]], 1)
        vc = torch.cat([S["second.weight"], S["second.bias"][:, None]], 1)
"""


def made(head: str, *tail: str) -> str:
    """A method of FUSED that makes its weights; `head` names the state S."""
    return FUSED + head + MAKES + "".join(f"        {line}\n" for line in tail)


COPIES = ("self.wb.copy_(wb)", "self.vc.copy_(vc)")
DATA = ("self.wb.data.copy_(wb)", "self.vc.data = vc")

HELPERS = {
    "an option": "    def prepare(self, fast=True):\n        assert fast is True\n",
    "an input that may be missing": "    def prepare(self, x=None):\n        self.w = None\n",
    "an input": "    def prepare(self, x):\n        return x\n",
    "an input, told by its shape": "    def prepare(self, x):\n        return x.reshape(-1)\n",
    "a type": "    def prepare(self, weight_dtype=None):\n        self.w = None\n",
    "options": "    def prepare(self, options: dict = None):\n        self.w = None\n",
    "a number": "    def prepare(self, weights=2):\n        self.w = None\n",
    "no argument": "    def prepare(self):\n        raise OSError\n",
    "a flag": "    prepare = True\n",
}


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_called_prepare_takes_no_weights(started, name):
    runner = started(BARE + HELPERS[name])
    assert runner.load() is Code.PLACED
    assert runner.error() < NEAR
    assert runner.follows()


def test_a_helper_that_folds_before_it_raises_finds_the_weights(started):
    helper = """
    def prepare(self, x):
        if not hasattr(self, "packed"):
            self.packed = self.w.detach().clone()
        return x.contiguous()
"""
    source = BARE.replace("F.linear(x, self.w,", "F.linear(self.prepare(x), self.packed,")
    runner = started(source + helper)
    assert runner.load() is Code.PLACED
    assert runner.error() < NEAR


LOADERS = {
    "prepare(state_dict)": made("    def prepare(self, S):", *COPIES).replace("S", "state_dict"),
    "prepare(sd), past autograd": made("    def prepare(self, S):", *DATA).replace("S", "sd"),
    "prepare under any name": made("    def prepare(self, S):", *COPIES).replace("S", "given"),
    "prepare with a default": made("    def prepare(self, S=None):", *COPIES).replace("S", "state"),
    "prepare with an annotation": made(
        "    def prepare(self, given: dict = None):\n        S = {**given}", *COPIES
    ),
    "a loader": made("    def load_state_dict(self, S, strict=True):", *COPIES),
    "a loader that takes a state alone": made("    def load_state_dict(self, S):", *DATA),
    "a loader that makes a state": made(
        "    def load_state_dict(self, S, strict=True, assign=False):",
        "return super().load_state_dict(dict(wb=wb, vc=vc), strict=strict)",
    ),
    "a hook": made(
        "    def _load_from_state_dict(self, S, prefix, *rest):",
        "S.clear()",
        "S.update(wb=wb, vc=vc)",
        "super()._load_from_state_dict(S, prefix, *rest)",
    ),
    "another hook": made(
        "    def remap(self, S, *rest):", "S.clear()", "S.update(wb=wb, vc=vc)"
    ).replace(
        "    def forward",
        "        self.register_load_state_dict_pre_hook(ModelNew.remap)\n    def forward",
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_takes_the_names_of_the_reference(started, name):
    runner = started(LOADERS[name])
    code = runner.load()
    assert code is (Code.OK if "prepare" in name else Code.PLACED)
    assert runner.error() < NEAR
    assert runner.follows()


NO_LOADERS = {
    "names of its own alone": """
    def load_state_dict(self, state, strict=True):
        self.w.data.copy_(state["w"])
        return super().load_state_dict(state, strict=False)
""",
    "whatever has a place": """
    def load_state_dict(self, state, strict=True):
        return super().load_state_dict(state, strict=False)
""",
    "half of it, then an exception": """
    def load_state_dict(self, state, strict=True):
        with torch.no_grad():
            self.w.zero_()
            self.norm_var.zero_()
        raise KeyError("model")
""",
    "nothing": "    def load_state_dict(self, *args, **options):\n        pass\n",
}


@pytest.mark.parametrize("name", NO_LOADERS)
def test_a_loader_that_leaves_weights_out_is_not_asked(started, name):
    runner = started(BARE + NO_LOADERS[name])
    assert runner.load() is Code.PLACED
    assert runner.error() < NEAR
    assert runner.follows()


def test_a_loader_that_gives_away_the_memory_is_the_programs_own_doing(started):
    """It is no crash of ours: the seed may still tell."""
    spoils = """
    def load_state_dict(self, state, strict=True):
        self.w.data = torch.zeros(3)
        raise KeyError("model")
"""
    runner = started(BARE + spoils)
    assert runner.load() is Code.NEED_SEED
    assert runner.do(Op.LOAD, Source.SEED, 1) is Code.OK


def test_what_a_loader_spoils_and_has_no_place_is_put_back(started):
    own = "        self.one = nn.Parameter(torch.ones(1))\n    def forward"
    source = BARE.replace("    def forward", own)
    source = source.replace("return F.linear(", "return self.one * F.linear(")
    runner = started(source + NO_LOADERS["half of it, then an exception"])
    assert runner.load() is Code.PLACED
    assert runner.error() < NEAR


@pytest.mark.parametrize(
    ("argument", "code"), [("state_dict", Code.PREPARE_RAISED), ("x", Code.NEED_SEED)]
)
def test_who_has_no_place_and_a_prepare_that_raises_is_told_what_is_missing(
    started, argument, code
):
    raising = f"    def prepare(self, {argument}):\n        return {argument}.shape\n"
    assert started(FUSED + raising).load() is code


LATE = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        skip = nn.utils.skip_init
        self.body = nn.Sequential(FIRST, nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(width))
    def forward(self, x):
        return self.body(x)
"""


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("first", ["nn.LazyLinear(2 * width)", "skip(nn.Linear, width, 2 * width)"])
def test_layers_that_come_without_memory_or_shape_take_their_weights(started, first, resets):
    runner = started(LATE.replace("FIRST", first), resets=resets)
    assert runner.load() is Code.PLACED
    assert runner.error() < NEAR
    assert runner.follows()
    assert runner.do(Op.RESET) is Code.OK
    assert runner.do(Op.LOAD, Source.SEED, 1) is Code.OK
    assert runner.do(Op.RESET) is Code.OK


HALF = "import torch\ntorch.set_default_dtype(torch.bfloat16)\n"


def test_a_default_that_a_program_sets_for_itself_holds_in_it(started):
    body = "assert torch.ones(1).dtype is torch.float64\nreturn self.right(x.double()).float()"
    runner = started("import torch\ntorch.set_default_dtype(torch.float64)\n" + forward(body))
    assert runner.load() is Code.OK
    assert runner.error() < NEAR
    assert runner.follows()


def test_a_default_that_the_reference_sets_is_put_back_in_both(started):
    task = dataclasses.replace(TASK, source=HALF + TASK_SOURCE)
    runner = started(HALF + forward("return self.right(x) + torch.zeros(1)"), task)
    assert runner.load() is Code.OK
    assert runner.error() < NEAR


def test_constructor_arguments_are_made_under_the_defaults_of_the_task(started):
    asked = TASK_SOURCE.replace("return [width]", "return [torch.tensor(64.3)]")
    asked = asked.replace("super().__init__()", "super().__init__()\n        width = int(width)")
    task = dataclasses.replace(TASK, source=asked)
    own = "super().__init__()\n        assert width.dtype is torch.float32"
    own += "\n        width = int(width)"
    source = forward("return self.right(x.to(torch.bfloat16))")
    runner = started(HALF + source.replace("super().__init__()", own), task)
    assert runner.load() is Code.OK
    assert runner.error() < 0.1
