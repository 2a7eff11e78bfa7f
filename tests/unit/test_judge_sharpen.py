"""Scores of attention under fresh weights: made to choose, wherever their weights are found."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_sharpen import PICKED, sharpen_scores  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, HEADS, WIDTH = 512, 2, 64


class Attends(nn.Module):
    """Self-attention after a norm; scores written out, or fused."""

    def __init__(self, fused=False, steep=1.0):
        super().__init__()
        self.before, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.after = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fused, self.steep = fused, steep

    def forward(self, x):
        x = self.before(x)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, scale=self.steep * q.shape[-1] ** -0.5)
        else:
            y = F.softmax(q @ k.mT * self.steep * q.shape[-1] ** -0.5, -1) @ v
        return x + self.after(y.transpose(1, 2).flatten(2))


class Normed(Attends):
    """With a norm of its queries and keys: their layer may be as large as it likes."""

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(WIDTH // HEADS), nn.LayerNorm(WIDTH // HEADS)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        y = F.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
        return x + self.after(y.transpose(1, 2).flatten(2))


class Projects(nn.Module):
    """Torch's own attention, of which three weights are one."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Shares(nn.Module):
    """Fused, in the forms that torch takes apart: no heads, or queries that share their keys."""

    def __init__(self, heads, kept=0):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // heads)
        self.heads, self.kept = heads, self.k.weight.detach()[:kept] if kept else None

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        if self.heads == 1:
            return F.scaled_dot_product_attention(q, k, x)
        q, k = (t.unflatten(-1, (-1, WIDTH // self.heads)).transpose(1, 2) for t in (q, k))
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)


class Remembers(nn.Module):
    """Keys in a buffer, which no weight is followed to."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("kept", 0.6 * torch.randn(LENGTH, WIDTH))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.kept, self.kept)


class Normalised(nn.Module):
    """Scores that no weight makes larger, and values of the same weight."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT, -1) @ v


class Twice(Remembers):
    """A query over kept keys, and over others that are twice as long."""

    def forward(self, x):
        first = super().forward(x)
        return first + F.scaled_dot_product_attention(self.q(x), 2 * self.kept, self.kept)


class Chooses(nn.Module):
    """A softmax that is the answer."""

    def __init__(self):
        super().__init__()
        self.classes = nn.Linear(WIDTH, LENGTH)

    def forward(self, x):
        return F.softmax(self.classes(x), -1)


def sharpened(model, length=LENGTH):
    """Names of the weights that change, and by how much."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x = torch.randn(1, length, WIDTH)
    count = sharpen_scores(model.eval(), lambda: model(x))
    changed = {n: p for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert count == len(changed)
    return {n: float((p.detach() / before[n]).mean()) for n, p in changed.items()}


@pytest.mark.parametrize("fused", [False, True])
def test_what_makes_the_scores_is_made_larger_and_nothing_else(fused):
    torch.manual_seed(0)
    gains = sharpened(Attends(fused))
    assert gains.keys() == {"qkv.weight", "qkv.bias"}
    assert 1.5 < gains["qkv.weight"] < 8.0


def test_where_queries_and_keys_are_normed_it_is_the_norms_gains():
    torch.manual_seed(0)
    model = Normed()
    nn.init.normal_(model.k_norm.bias, std=0.1)
    gains = sharpened(model)
    assert gains.keys() >= {"q_norm.weight", "k_norm.weight"}
    assert not gains.keys() & {"norm.weight", "after.weight", "before.weight"}


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_that_torch_takes_apart_is_found(heads):
    torch.manual_seed(0)
    assert sharpened(Shares(heads)).keys() == {"q.weight", "q.bias", "k.weight", "k.bias"}


def test_what_shares_memory_with_a_weight_does_not_put_it_back():
    torch.manual_seed(0)
    model = Shares(1, kept=8)
    before = model.k.weight.detach().clone()
    sharpened(model)
    gains = model.k.weight.detach() / before
    assert gains.max() == pytest.approx(float(gains.min()), rel=1e-4)
    assert gains.min() > 1.2


def test_weights_that_are_one_are_found():
    torch.manual_seed(0)
    assert sharpened(Projects()).keys() == {"attention.in_proj_weight"}
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("model", "length"),
    [(Attends(), 3), (Attends(steep=20.0), LENGTH), (Chooses(), LENGTH)],
    ids=["few positions", "sharp already", "no attention"],
)
def test_others_stay(model, length):
    torch.manual_seed(0)
    assert not sharpened(model, length)


@pytest.mark.parametrize("length", [24, 49, LENGTH])
@pytest.mark.parametrize("fused", [False, True])
def test_a_straight_line_is_no_longer_nearly_right(fused, length):
    torch.manual_seed(0)
    model, x = Attends(fused).eval(), torch.randn(8, length, WIDTH)

    def off():
        with torch.no_grad():
            y = model.norm(model.before(x))
            q, k, v = model.qkv(y).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            exact = F.scaled_dot_product_attention(q, k, v)
            k = (k - k.mean(-2, keepdim=True)) * q.shape[-1] ** -0.5
            line = v.mean(-2, keepdim=True) + q @ (k.mT @ v / length)
            return float((line - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    nearly = off()
    sharpen_scores(model, lambda: model(x))
    assert nearly < 0.15
    assert off() > 0.3


@pytest.mark.parametrize("length", [4, 8, 16])
def test_a_plain_mean_of_few_is_no_longer_nearly_right(length):
    torch.manual_seed(0)
    model, x = Attends().eval(), torch.randn(8, length, WIDTH)
    with torch.no_grad():
        model.qkv.weight.mul_(0.25)

    def off():
        with torch.no_grad():
            y = model.norm(model.before(x))
            q, k, v = model.qkv(y).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            exact = F.scaled_dot_product_attention(q, k, v)
            flat = v.mean(-2, keepdim=True)
            return float((flat - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    nearly = off()
    sharpen_scores(model, lambda: model(x))
    assert nearly < 0.05
    assert off() > 0.5


@pytest.mark.parametrize(
    ("times", "length", "stays"), [(12, 8, True), (2, 8, False), (12, 32, False)]
)
def test_few_positions_that_are_attended_to_again_and_again_stay(times, length, stays):
    torch.manual_seed(0)
    model, x = Attends().eval(), torch.randn(8, length, WIDTH)
    before = model.qkv.weight.detach().clone()
    sharpen_scores(model, lambda: [model(x) for _ in range(times)])
    assert torch.equal(model.qkv.weight, before) == stays


def test_where_keys_are_kept_queries_alone_make_scores_as_large():
    torch.manual_seed(0)
    model = Remembers().eval()
    x = torch.randn(8, WIDTH)

    def spread():
        with torch.no_grad():
            return float((model.q(x) @ model.kept.T * WIDTH**-0.5).std(-1).mean())

    few = spread()
    assert sharpen_scores(model, lambda: model(x)) == 2
    assert few < 0.5
    wanted = math.log(LENGTH / PICKED) ** 0.5
    assert spread() == pytest.approx(wanted, rel=0.2)


def test_a_weight_whose_scores_do_not_follow_is_made_larger_once():
    torch.manual_seed(0)
    model, x = Normalised().eval(), torch.randn(1, LENGTH, WIDTH)
    before = model.qkv.weight.detach().clone()
    with torch.no_grad():
        q, k, _ = model.qkv(x).chunk(3, -1)
        spread = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).std()
    once = (math.log(LENGTH / PICKED) ** 0.5 / float(spread)) ** 0.5
    sharpen_scores(model, lambda: model(x))
    assert float((model.qkv.weight.detach() / before).mean()) == pytest.approx(once, rel=0.05)


def test_a_weight_is_not_made_larger_than_the_largest_of_its_scores_asks_for():
    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(8, WIDTH)
    sharpen_scores(model, lambda: model(x))
    with torch.no_grad():
        largest = float((2 * model.q(x) @ model.kept.T * WIDTH**-0.5).std(-1).mean())
    assert largest < 1.3 * math.log(LENGTH / PICKED) ** 0.5


def test_neither_sharp_attention_nor_an_answer_beside_it_keeps_scores_from_growing():
    torch.manual_seed(0)

    class Beside(Remembers):
        def __init__(self):
            super().__init__()
            self.sharp = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            sharp = F.scaled_dot_product_attention(self.sharp(x), 40 * self.kept, self.kept)
            return super().forward(x) + sharp + F.softmax(100 * self.q(x), -1)

    model, x = Beside().eval(), torch.randn(8, WIDTH)
    assert sharpen_scores(model, lambda: model(x)) == 2
    with torch.no_grad():
        spread = float((model.q(x) @ model.kept.T * WIDTH**-0.5).std(-1).mean())
    assert spread == pytest.approx(math.log(LENGTH / PICKED) ** 0.5, rel=0.2)


def test_no_weight_is_made_larger_than_most_in_all_rounds():
    torch.manual_seed(0)
    model, x = Remembers().eval(), torch.randn(8, WIDTH)
    model.kept *= 0.2
    before = model.q.weight.detach().clone()
    sharpen_scores(model, lambda: model(x))
    assert 6.0 < float((model.q.weight.detach() / before).mean()) < 8.01


def test_calls_with_other_scores_than_the_one_before_end_the_rounds():
    torch.manual_seed(0)
    calls = []

    class Grows(Remembers):
        def forward(self, x):
            calls.append(x)
            return sum(super(Grows, self).forward(x) for _ in calls)

    model, x = Grows().eval(), torch.randn(8, WIDTH)
    assert sharpen_scores(model, lambda: model(x)) == 2


@pytest.mark.parametrize("renewed", [False, True])
def test_a_forward_that_renews_or_checks_its_weights_is_no_failure(renewed):
    torch.manual_seed(0)

    class Watches(Remembers):
        def forward(self, x):
            if renewed:
                self.q.weight = nn.Parameter(self.q.weight.detach().clone())
            elif self.q.weight.abs().max() > self.most:
                raise ValueError("out of range")
            return super().forward(x)

    model, x = Watches().eval(), torch.randn(8, WIDTH)
    model.most = 1.5 * float(model.q.weight.detach().abs().max())
    before = model.q.weight.detach().clone()
    sharpen_scores(model, lambda: model(x))
    if not renewed:
        assert torch.equal(model.q.weight, before)


def test_a_model_that_would_not_stand_it_keeps_its_weights():
    torch.manual_seed(0)

    class Breaks(Attends):
        def forward(self, x):
            bad = self.qkv.weight.square().mean() > self.most
            return super().forward(x) * (float("inf") if bad else 1.0)

    model = Breaks()
    model.most = 2 * float(model.qkv.weight.detach().square().mean())
    before = model.qkv.weight.detach().clone()
    assert sharpen_scores(model.eval(), lambda: model(torch.randn(1, LENGTH, WIDTH))) == 0
    assert torch.equal(model.qkv.weight, before)


NORMED_AFTERWARDS = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x):
        y = F.softmax(self.q(x) @ self.k(x).mT / 4, -1) @ x
        return self.norm(y.transpose(1, 2))


def get_inputs():
    return [torch.randn(4, 1024, 16)]


def get_init_inputs():
    return []
"""


def test_norms_behind_sharpened_attention_are_calibrated_for_it():
    task = Task(suite="tests", id="1", name="normed", source=NORMED_AFTERWARDS)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"key"))
    try:
        norm = truth.model.norm
        gain, shift = (p.detach()[:, None] for p in (norm.weight, norm.bias))
        y = (truth.natively(7)[0] - shift) / gain
        assert float(y.std()) == pytest.approx(1.0, rel=0.2)
    finally:
        truth.close()
