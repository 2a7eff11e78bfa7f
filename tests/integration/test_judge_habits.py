"""Habits of honest programs before the whole judge: none is a reason to refuse them."""

import pytest
from builders.tiny_task import OF_TIMING, forward, judge

from pike_hpc.records import EvalStatus, Tier

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HEAD = """
import torch, torch.nn as nn
import torch.nn.functional as F
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
"""

AS_ROWS = f"""{HEAD}
        self.width, wide = width, 2 * width
        self.w, self.v = (nn.Parameter(torch.empty(width * wide)) for _ in range(2))
        self.b, self.c = nn.Parameter(torch.empty(wide)), nn.Parameter(torch.empty(1, width))
        self.gain, self.shift = (nn.Parameter(torch.empty(1, wide)) for _ in range(2))
        self.register_buffer("bn_mean", torch.empty(1, wide))
        self.register_buffer("bn_var", torch.empty(1, wide))
    def prepare(self, contiguous=True):
        assert contiguous is True
    def forward(self, x):
        self.prepare()
        h = F.linear(x, self.w.view(-1, self.width), self.b)
        h = (h - self.bn_mean) * torch.rsqrt(self.bn_var + 1e-5) * self.gain + self.shift
        return F.linear(torch.relu(h), self.v.view(self.width, -1)) + self.c
"""

LOADS_ITSELF = f"""{HEAD}
        self.wb = nn.Parameter(torch.empty(width + 1, 2 * width))
        self.vc = nn.Parameter(torch.empty(2 * width + 1, width))
    def load_state_dict(self, state, strict=True, assign=False):
        gain = state["norm.weight"] * torch.rsqrt(state["norm.running_var"] + 1e-5)
        bias = (state["first.bias"] - state["norm.running_mean"]) * gain + state["norm.bias"]
        self.wb.data.copy_(torch.cat([state["first.weight"].t() * gain, bias[None]]))
        self.vc.data.copy_(torch.cat([state["second.weight"].t(), state["second.bias"][None]]))
    def forward(self, x):
        h = torch.addmm(self.wb[-1], x, self.wb[:-1]).relu_()
        return torch.addmm(self.vc[-1], h, self.vc[:-1])
"""

AUTOGRAD = forward(
    """
if self.cached is None or self.cached[0] != self.first.weight._version:
    self.cached = self.first.weight._version, self.first.weight.detach().t().contiguous()
with torch.enable_grad():
    leaf = x.detach().requires_grad_()
    ones, = torch.autograd.grad(leaf.sum(), leaf)
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    h = pool.submit(torch.addmm, self.first.bias, x * ones, self.cached[1]).result()
return self.second(torch.relu(self.norm(h)))""",
    before="import concurrent.futures",
).replace("    def right", "        self.cached = None\n\n    def right")

EXPORTED = f"""{HEAD}
        self.first, self.norm = nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width)
        second = nn.Linear(2 * width, width).eval()
        self.second = torch.export.export(second, (torch.empty(64, 2 * width),)).module()
        self.late = nn.Dropout()
    def forward(self, x):
        return self.late(self.second(torch.relu(self.norm(self.first(x)))))
"""

HABITS = {
    "gradients, versions and threads inside": AUTOGRAD,
    "weights as rows, and a helper called prepare": AS_ROWS,
    "a loader of its own": LOADS_ITSELF,
    "a graph of torch.export, which has no modes": EXPORTED,
}


@pytest.mark.parametrize("name", HABITS)
def test_a_habit_is_no_reason_to_refuse(lane, name):
    result = judge(lane, HABITS[name])
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier is Tier.FP32
    assert set(result.tags) <= OF_TIMING


def test_what_keeps_a_little_of_its_first_weights_is_said_to(lane):
    # Far less than the 3 % of what other weights change, which a living model may be off by.
    kept = forward(
        """
if self.kept is None:
    self.kept = self.second.bias.detach().clone()
return self.right(x) + 0.02 * (self.kept - self.second.bias)"""
    ).replace("    def right", "        self.kept = None\n\n    def right")
    result = judge(lane, kept)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "caches_weights" in result.tags
