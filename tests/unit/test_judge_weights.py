"""Constants of fresh weights: moved far enough that nothing hides behind them, and put back."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_weights import (  # noqa: E402
    lengthen_memory,
    move_constant,
    moved_constants,
    spread_constants,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("value", "least", "most"), [(0.0, 0.04, 0.06), (1e-6, 0.04, 0.06), (2.0, 0.16, 0.24)]
)
def test_a_constant_is_moved_by_enough_to_matter(value, least, most):
    moved = torch.full((4096,), value)
    move_constant(moved, torch.Generator().manual_seed(1))
    assert least < (moved - value).square().mean().sqrt() < most
    assert value in (0.0, 2.0) or bool((moved > 0).all())  # its sign may matter


def test_what_is_no_constant_stays():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    before = {n: p.clone() for n, p in model.named_parameters()}
    spread_constants(model, 1)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_constants_are_moved_one_at_a_time_and_come_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    x = torch.randn(2, 3)
    before, changed = model(x), []
    for name, moved in moved_constants(model, 1):
        with moved:
            if not torch.equal(model(x), before):
                changed.append(name)
        assert torch.equal(model(x), before)
    assert changed == ["1.weight", "1.bias", "1.running_mean", "1.running_var"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_remembers_its_first_step_at_the_last(kind):
    torch.manual_seed(0)
    layer = kind(8, 16, 2, batch_first=True, bidirectional=True)
    x = torch.randn(2, 200, 8)
    other = torch.cat([torch.randn(2, 50, 8), x[:, 50:]], 1)

    def moved():
        with torch.no_grad():
            return (layer(x)[0][:, -1, :16] - layer(other)[0][:, -1, :16]).abs().max()

    assert moved() < 1e-6
    lengthen_memory(layer)
    assert moved() > 1e-2


def test_one_without_biases_has_nothing_to_remember_by():
    torch.manual_seed(0)
    layer = nn.GRU(8, 16, bias=False)
    before = [p.clone() for p in layer.parameters()]
    lengthen_memory(layer)
    assert all(map(torch.equal, before, layer.parameters()))
