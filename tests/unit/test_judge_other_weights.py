"""Other weights: what of a model changes for the probe, by how much, and what stays."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_other_weights import DRAWN, SLICE, scramble  # noqa: E402

pytestmark = pytest.mark.torch


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


def test_some_signs_turn_where_both_are():
    torch.manual_seed(0)
    model = nn.ParameterDict({"both": torch.randn(4096), "one": 5.0 + torch.rand(4096)})
    before = {name: value.detach().clone() for name, value in model.items()}
    scramble(model, 1)
    turned = {n: float((v * before[n] < 0).double().mean()) for n, v in model.items()}
    assert turned["both"] == pytest.approx(1 / 8, rel=0.2)
    assert turned["one"] == 0.0


def test_complex_weights_are_others_too():
    model = nn.ParameterDict({"spectral": torch.randn(8, 8, dtype=torch.complex64)})
    before = model["spectral"].clone()
    scramble(model, 1)
    assert not torch.isclose(model["spectral"], before, rtol=1e-3).any(dim=1).all()


@pytest.mark.parametrize("shape", [(64, 64), (1024, 1024), (3, DRAWN), (0, 4), ()])
def test_a_large_parameter_changes_as_a_small_one_does(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    model = nn.ParameterDict({"weight": weight.clone()})
    scramble(model, 1)
    if weight.numel() < 2:
        return
    factors = model["weight"].detach() / weight
    assert 0.19 < float((factors.abs() - 1).std()) < 0.21
    assert 0.11 < float((factors < 0).float().mean()) < 0.14
    if shape[0] == shape[1]:
        assert len(torch.unique(factors[:, 0])) > 0.9 * shape[0]
