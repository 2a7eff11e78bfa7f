"""Constants of fresh weights: moved far enough that nothing hides behind them, and put back."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_structure import structure_of  # noqa: E402
from pike_hpc.evaluate.judge_turned import turn_constants  # noqa: E402
from pike_hpc.evaluate.judge_weights import (  # noqa: E402
    demand_copy,
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


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64], ids=str
)
def test_what_is_no_constant_stays(dtype):
    torch.manual_seed(0)
    model = nn.Linear(4, 4, dtype=dtype)
    before = {n: p.clone() for n, p in model.named_parameters()}
    spread_constants(model, 1)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize(
    "start",
    [
        lambda w: nn.init.uniform_(w, -1e-6, 1e-6),
        lambda w: nn.init.normal_(w, std=1e-4),
    ],
)
def test_a_matrix_that_does_next_to_nothing_is_moved_like_a_constant(start):
    weight = nn.Parameter(start(torch.empty(64, 1024)))
    with torch.no_grad():
        assert move_constant(weight, torch.Generator().manual_seed(1))
    assert 0.02 < weight.square().mean().sqrt() < 0.06


def test_what_starts_as_an_identity_is_filled():
    weight = nn.Parameter(nn.init.dirac_(torch.empty(64, 64, 3, 3)))
    fixed = nn.Parameter(weight.clone(), requires_grad=False)
    own = weight.square().mean().sqrt()
    with torch.no_grad():
        assert move_constant(weight, torch.Generator().manual_seed(1))
        assert not move_constant(fixed, torch.Generator().manual_seed(1))
    assert weight.count_nonzero() == weight.numel()
    assert 0.4 * own < weight[:, :, 0, 0].square().mean().sqrt() < 0.6 * own
    causal = nn.Parameter(torch.randn(64, 64).tril())
    with torch.no_grad():
        assert not move_constant(causal, torch.Generator().manual_seed(1))


def test_copies_of_a_layer_are_told_apart():
    torch.manual_seed(0)
    one = nn.Linear(8, 8)
    tied = nn.Linear(8, 8)
    model = nn.ModuleList([one, copy.deepcopy(one), copy.deepcopy(one), tied, tied])
    spread_constants(model, 1)
    assert not any(
        torch.equal(model[i].weight, model[j].weight) for i, j in ((0, 1), (0, 2), (1, 2))
    )
    off = (model[1].weight - one.weight).square().mean().sqrt()
    assert 0.1 < off / one.weight.square().mean().sqrt() < 0.3
    assert model[3].weight is model[4].weight


def test_two_tables_of_indices_may_be_alike():
    tables = nn.ParameterList(nn.Parameter(torch.arange(16), requires_grad=False) for _ in range(2))
    spread_constants(tables, 1)
    assert all(torch.equal(table, torch.arange(16)) for table in tables)


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


@pytest.mark.parametrize(
    "start",
    [
        lambda: nn.init.orthogonal_(torch.empty(64, 64)),
        lambda: torch.randn(1, 32, 32).repeat(8, 1, 1),
        lambda: torch.randn(64, 1, 7, 1) * torch.randn(64, 1, 1, 7),
    ],
)
def test_what_has_a_structure_that_training_would_undo_loses_it(start):
    torch.manual_seed(0)
    model = nn.ParameterDict({"learned": start()})
    model["fixed"] = nn.Parameter(start(), requires_grad=False)
    before = {name: value.clone() for name, value in model.items()}
    spread_constants(model, 1)
    assert structure_of(before["learned"])
    assert not structure_of(model["learned"])
    off = (model["learned"] - before["learned"]).square().mean() / before["learned"].square().mean()
    assert 0.15 < off.sqrt() < 0.25
    assert torch.equal(model["fixed"], before["fixed"])


class Scaled(nn.Module):
    """A norm of torch, one of its own, a scale, an exponent, a rate, and statistics of its own."""

    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.ones(width))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.power = nn.Parameter(torch.full((width,), 3.0))
        self.frozen = nn.Parameter(torch.full((3, 3), 1 / 9), requires_grad=False)
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        x = self.norm(x) * self.gain
        return self.scale * x + 100.0 * x.abs().clamp(min=0.1) ** self.power


def test_signs_of_gains_turn_and_of_what_is_no_scale_do_not():
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(8, 64)
    scales = spread_constants(model, 1)
    assert {id(p) for p in scales} == {id(p) for p in (model.gain, model.scale, model.power)}
    assert 1 <= int((model.norm.weight < 0).sum()) < 32
    turned = turn_constants(scales, lambda: model(x), torch.Generator().manual_seed(1))
    assert turned == 2
    assert 1 <= int((model.gain < 0).sum()) < 32
    assert not (model.power < 0).any()
    assert 1.5 < model.scale.abs() < 2.5


def test_statistics_that_no_call_here_measures_are_moved():
    model = Scaled()
    spread_constants(model, 1)
    assert 0.05 < model.running_mean.std() < 0.2
    assert 0.05 < model.running_var.log().std() < 0.2
    measured = nn.BatchNorm1d(8)
    spread_constants(measured, 1)
    assert not measured.running_mean.any()


def test_a_constant_that_asks_for_no_gradient_is_meant_where_others_do():
    model = Scaled()
    spread_constants(model, 1)
    assert torch.equal(model.frozen, torch.full((3, 3), 1 / 9))
    assert "frozen" not in dict(moved_constants(model, 1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert "frozen" in dict(moved_constants(model, 1))


class CopiesItself(nn.Linear):
    """As it was made, hooks and later weights left out."""

    def __deepcopy__(self, memo):
        torch.manual_seed(0)
        return CopiesItself(self.in_features, self.out_features)


def test_a_copy_that_is_not_as_its_model_is_is_told():
    torch.manual_seed(0)
    model = CopiesItself(4, 4)
    demand_copy(model, copy.deepcopy(model))
    with model.register_forward_hook(lambda *_: None), pytest.raises(ValueError, match="hooks"):
        demand_copy(model, copy.deepcopy(model))
    with torch.no_grad():
        model.bias.zero_()
    with pytest.raises(ValueError, match="weights"):
        demand_copy(model, copy.deepcopy(model))
