"""Weights on a GPU: what is said of them, what they become, and what that takes of its memory."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_balance import balance_units  # noqa: E402 - torch
from pike_hpc.evaluate.judge_other_weights import SLICE, scramble  # noqa: E402 - torch
from pike_hpc.evaluate.judge_structure import structure_of  # noqa: E402 - torch
from pike_hpc.evaluate.judge_weights import spread_constants  # noqa: E402 - torch

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

ROOM = 96 << 20
"""What a look at weights may take beside them, in bytes, however large they are."""


def orthogonal(*shape):
    return nn.init.orthogonal_(torch.empty(shape))


WEIGHTS = {
    "Linear": lambda: torch.randn(512, 512),
    "Conv1d": lambda: torch.randn(256, 256, 7),
    "experts": lambda: torch.randn(8, 512, 512),
    "in bfloat16": lambda: torch.randn(300, 300, dtype=torch.bfloat16),
    "not finite": lambda: torch.full((32, 32), torch.nan),
    "turned": lambda: orthogonal(512, 512),
    "few dimensions": lambda: torch.randn(512, 16) @ torch.randn(16, 512),
    "products": lambda: torch.randn(64, 1, 7, 1) * torch.randn(64, 1, 1, 7),
    "blocks": lambda: torch.block_diag(*torch.randn(8, 16, 16)),
}


@pytest.fixture(name="device")
def place(device):
    """What torch calls it."""
    return torch.device(device.torch_device)


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_said_of_weights_does_not_depend_on_where_they_lie(name, device):
    torch.manual_seed(1)
    here = WEIGHTS[name]()
    there = here.to(device)
    assert structure_of(there) == structure_of(here)


@pytest.mark.parametrize("change", [spread_constants, scramble], ids=lambda change: change.__name__)
def test_weights_become_the_same_wherever_they_lie(change, device):
    torch.manual_seed(1)
    here = nn.ParameterDict({name: make() for name, make in WEIGHTS.items()})
    there = nn.ParameterDict(
        {name: value.detach().clone().to(device) for name, value in here.items()}
    )
    change(here, 7)
    change(there, 7)
    for name, value in here.items():
        assert torch.allclose(there[name].cpu(), value, atol=1e-6, equal_nan=True), name


def taken(work, device) -> int:
    """Bytes of the GPU that `work` has beside what was there, at most."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def test_a_look_at_large_weights_takes_little(device):
    table = torch.randn(1_000_000, 64, device=device)
    assert taken(lambda: structure_of(table), device) < ROOM


def test_nor_do_zeros_of_large_weights_that_are_filled(device):
    rows = 8 * SLICE // 4096
    weight = torch.randn(rows, 4096, device=device)
    weight[::30] = 0.0
    model = nn.ParameterDict({"weight": weight})
    # The noise by which all of it changes is as large as the weight, and is multiplied by it.
    assert taken(lambda: scramble(model, 1), device) < 2 * weight.numel() * 4 + ROOM
    assert bool(model["weight"].detach().all())


def test_units_are_balanced_there_as_here(device):
    torch.manual_seed(0)
    layers = [[nn.Linear(64, 64), nn.ReLU()] for _ in range(6)]
    here = nn.Sequential(*[part for pair in layers for part in pair], nn.Linear(64, 8)).eval()
    there = copy.deepcopy(here).to(device)
    draws = [torch.rand(128, 64) for _ in range(2)]
    assert balance_units(here, lambda n: here(draws[n])) == 6
    assert balance_units(there, lambda n: there(draws[n].to(device))) == 6
    for name, value in here.state_dict().items():
        assert torch.allclose(there.state_dict()[name].cpu(), value, atol=1e-3), name
