"""What is decided about a layer's units, and what its parameters become by that."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_units import FAR, MOST_GAIN, QUIET, Layer, Seen, change  # noqa: E402

pytestmark = pytest.mark.torch


def layer_of(linear, x):
    """A layer that has seen what it gives to x."""
    layer = Layer(bias=linear.bias, weight=linear.weight, may_gain=True)
    layer.seen = Seen.of(linear(x), -1)
    return layer


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 2])
def test_parameters_give_what_was_decided_and_can_be_put_back(steps):
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 16).double(), torch.randn(64, 16).double()
    before, y = linear(x), linear(x)
    layer = layer_of(linear, x)
    for gain, shift in ((1.0, torch.randn(16).double()), (4.0, torch.randn(16).double()))[:steps]:
        layer.move(gain, shift)
        change(y, -1, gain, shift)
    with contextlib.ExitStack() as undo:
        layer.settle(undo)
        assert torch.allclose(linear(x), y)
    assert torch.equal(linear(x), before)


@torch.no_grad()
def test_what_hardly_deviates_keeps_its_size_while_others_gain():
    x = 1e-2 * torch.randn(64, 4)
    linear = nn.Linear(4, 4)
    linear.weight.copy_(torch.eye(4))
    linear.weight[0] *= 1e-3
    linear.bias.fill_(0.03)
    layer, y = layer_of(linear, x), linear(x)
    gain, shift = layer.wanted()
    change(y, -1, gain, shift)
    assert gain > 8.0
    assert y[:, 0].mean() == pytest.approx(0.03, rel=1e-3)
    assert (y[:, 1:].mean(0).abs() / y[:, 1:].std(0)).max() < FAR


@torch.no_grad()
def test_no_layer_gains_more_than_its_most_however_often_it_is_asked():
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 16, bias=True), 1e-6 * torch.randn(64, 16)
    linear.bias.zero_()
    layer, y = layer_of(linear, x), linear(x)
    while wanted := layer.wanted():
        layer.move(*wanted)
        change(y, -1, *wanted)
        layer.seen = Seen.of(y, -1)
    assert layer.gain == MOST_GAIN
    assert y.std() < QUIET


@torch.no_grad()
def test_calls_are_seen_as_one():
    torch.manual_seed(0)
    calls = [n + torch.randn(rows, 3, 5) for n, rows in ((0, 4), (3, 1), (-2, 9))]
    merged = Seen.of(calls[0], 1)
    for call in calls[1:]:
        merged = merged.with_(Seen.of(call, 1))
    whole = Seen.of(torch.cat(calls), 1)
    assert merged.rows == whole.rows == 70
    assert merged.fewest == 5
    assert torch.allclose(merged.mean, whole.mean, atol=1e-6)
    assert torch.allclose(merged.squares, whole.squares, rtol=1e-5)
