"""Deep networks under the judge's weights: rounding stays small, and what is calm is left alone."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_calm import (  # noqa: E402
    CALM,
    before_a_sum,
    roughness,
    rounded,
    settle_norms,
)
from pike_hpc.evaluate.judge_weights import calibrate, norms_of, spread_constants  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    """Its input is as large as its branch: else the sum grows, and branches weigh ever less."""

    def __init__(self, channels):
        super().__init__()
        self.inner = chain(channels, 2)
        self.last = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.last(self.inner(x)) + x / x.std())


class Shortcut(nn.Module):
    """Both terms of its sum come from norms; the branch is called last."""

    def __init__(self):
        super().__init__()
        self.side, self.branch = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        side = self.side(x)
        out = self.branch(2 * x)
        out += side
        return torch.relu(out)


def chain(channels, layers):
    parts = []
    for _ in range(layers):
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        parts += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*parts)


def drawn(model):
    spread_constants(model.eval(), 3)
    return model


def images():
    return [[torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(n))] for n in (1, 2)]


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_a_deep_network_is_calmed(kind):
    torch.manual_seed(0)
    blocks = [Block(16) for _ in range(24)]
    model = drawn(chain(16, 30) if kind == "plain" else nn.Sequential(*blocks))
    norms = len(norms_of(model))
    assert calibrate(model, images()) == norms
    before = roughness(model, images)
    assert before > 2 * CALM, "nothing to be calmed"
    assert settle_norms(model, images) == norms
    assert roughness(model, images) <= CALM
    # The signal is alive: another input is another answer.
    one, other = (model(batch[0]).detach() for batch in images())
    assert float((one - other).norm() / one.norm()) > 0.1


def test_what_is_calm_keeps_its_gains():
    torch.manual_seed(0)
    model = drawn(chain(16, 2))
    before = [(n.weight.clone(), n.bias.clone()) for n in norms_of(model)]
    assert settle_norms(model, images) == 2
    for norm, (weight, bias) in zip(norms_of(model), before, strict=True):
        assert torch.equal(norm.weight, weight)
        assert torch.equal(norm.bias, bias)
    assert settle_norms(nn.Linear(2, 2), lambda: pytest.fail("called for nothing")) == 0


def test_where_no_rung_helps_gains_are_what_they_were():
    """A chain that squashes what it knows into few digits, whatever its norms do."""
    torch.manual_seed(0)

    class Squashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1)

        def forward(self, x):
            return self.last(1e-4 * torch.tanh(self.norm(x)) + 1.0)

    model = drawn(Squashed())
    weight, bias = model.norm.weight.clone(), model.norm.bias.clone()
    assert settle_norms(model, images) == 1
    assert roughness(model, images) > CALM
    assert torch.equal(model.norm.weight, weight)
    assert torch.equal(model.norm.bias, bias)


def test_of_two_norms_that_are_added_the_later_is_the_branch():
    model = Shortcut().eval()
    assert before_a_sum(model, [torch.randn(2, 4, 3, 3)]) == {model.branch}
    alone = Block(16).eval()
    assert before_a_sum(alone, images()[0]) == {alone.last}
    assert before_a_sum(chain(16, 2).eval(), images()[0]) == set()


def test_rounded_weights_come_back_to_the_bit():
    torch.manual_seed(0)
    layer = nn.Linear(64, 64)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    with rounded(layer):
        off = ((layer.weight.detach() - weight) / weight).abs()
        assert 2.0**-12 < float(off.max()) <= 2.0**-11
        assert torch.equal(layer.bias, bias)
    assert torch.equal(layer.weight, weight)


def test_norms_without_a_bias_are_calmed_by_their_gains():
    torch.manual_seed(0)
    model = drawn(nn.Sequential(*[Block(16) for _ in range(24)]))
    for norm in norms_of(model):
        norm.bias = None  # as BatchNorm2d(16, bias=False) leaves it in newer torch
    calibrate(model, images())
    before = roughness(model, images)
    settle_norms(model, images)
    assert roughness(model, images) < before


class Remembers(nn.Module):
    """Assigns a buffer in its forward, as moving averages do."""

    def __init__(self):
        super().__init__()
        self.body = chain(16, 2)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return self.body(x) + self.mean


def test_what_calls_leave_in_a_model_is_put_back():
    model = drawn(Remembers())
    calibrate(model, images())
    buffer, value = model.mean, model.mean.clone()
    roughness(model, images)
    assert model.mean is buffer
    assert torch.equal(model.mean, value)
    model.load_state_dict(model.state_dict())
