"""Constants of fresh weights: moved far enough that nothing hides behind them, and put back."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_structure import structure_of  # noqa: E402
from pike_hpc.evaluate.judge_weights import (  # noqa: E402
    SLICE,
    lengthen_memory,
    move_constant,
    moved_constants,
    scramble,
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


def test_other_weights_have_no_zeros_but_those_of_padding_and_tables():
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(40, 8, padding_idx=0), "fc": nn.Linear(16, 16)})
    model.register_buffer("mask", torch.eye(4))
    model.table = nn.Parameter(torch.eye(4), requires_grad=False)
    with torch.no_grad():
        model["fc"].weight.copy_(torch.block_diag(*torch.randn(2, 8, 8)))
    own = model["fc"].weight[:8, :8].square().mean().sqrt()
    scramble(model, 1)
    filled = model["fc"].weight[:8, 8:]
    assert int((filled == 0).sum()) == 0
    assert 0.3 < filled.square().mean().sqrt() / own < 0.8
    assert not model["embed"].weight[0].any()
    assert torch.equal(model.mask, torch.eye(4))
    assert not model.table[0, 1]


@pytest.mark.parametrize(
    "value",
    [
        torch.full((8, 8), -math.inf).triu(1),
        torch.full((8, 8), -1e9).triu(1),
        torch.full((8, 8), -65504.0).triu(1).half(),
        torch.full((4, 4), math.nan).triu(1),
    ],
)
def test_nor_are_masks_filled_that_learn_by_accident(value):
    model = nn.ParameterDict({"mask": value.clone()})
    scramble(model, 1)
    assert torch.equal(model["mask"] == 0, value == 0)


def test_a_zero_that_chance_drew_is_a_number_like_any_other():
    weight = torch.randn(64, 64)
    weight.view(-1)[:3] = 0.0
    model = nn.ParameterDict({"weight": weight})
    scramble(model, 1)
    assert torch.equal(model["weight"] == 0, weight == 0)


def test_zeros_of_a_large_parameter_are_filled_in_all_of_its_slices():
    weight = torch.ones(SLICE // 2048 + 100, 2048)
    weight[::30] = 0.0
    model = nn.ParameterDict({"weight": weight})
    scramble(model, 1)
    filled = model["weight"].detach()[::30]
    assert int((filled == 0).sum()) == 0
    assert filled.square().mean().sqrt() == pytest.approx(0.5, rel=0.05)


def test_what_has_one_sign_keeps_it():
    model = nn.ParameterDict({"up": torch.linspace(0, 1, 50), "down": torch.linspace(-1, 0, 50)})
    scramble(model, 1)
    up, down = (model[name].detach() for name in ("up", "down"))
    assert float(up.min()) > 0.0 > float(down.max())


def test_complex_weights_are_others_too():
    model = nn.ParameterDict({"spectral": torch.randn(8, 8, dtype=torch.complex64)})
    before = model["spectral"].clone()
    scramble(model, 1)
    assert not torch.isclose(model["spectral"], before, rtol=1e-3).any(dim=1).all()
