"""How a runner calls programs, and how these take their weights: in the test's own process."""

import pytest

torch = pytest.importorskip("torch")

from builders.one_runner import OneRunner  # noqa: E402
from builders.tiny_task import HEAD, TASK, forward  # noqa: E402

from pike_hpc.evaluate.runner import Code, Op  # noqa: E402

pytestmark = pytest.mark.torch

NEAR = 1e-4


@pytest.fixture
def started():
    """Starts a runner for a program, which has not loaded it yet."""
    runners = []

    def start(source, **options):
        runners.append(OneRunner(TASK, source, **options))
        return runners[-1]

    yield start
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
