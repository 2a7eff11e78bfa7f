"""Which fresh weights are more than numbers drawn one by one."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_structure import structure_of  # noqa: E402 - torch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(64, 64).weight,
        lambda: nn.Linear(4096, 16).weight,
        lambda: nn.Linear(16, 4096).weight,
        lambda: nn.Conv2d(16, 64, 3).weight,
        lambda: nn.Conv2d(64, 64, 7, groups=64).weight,
        lambda: nn.Conv1d(32, 32, 3).weight,
        lambda: nn.Embedding(1000, 300).weight,
        lambda: nn.LSTM(64, 64).weight_hh_l0,
        lambda: nn.Bilinear(20, 30, 40).weight,
        lambda: torch.rand(256, 256),
        lambda: torch.randn(2, 3),
        lambda: torch.randn(300, 300, dtype=torch.bfloat16),
        lambda: torch.zeros(64),
        lambda: 0.9 + 0.1 * torch.rand(16, 32),
        lambda: 1.0 + 0.02 * torch.randn(4, 64),
        lambda: torch.full((32, 32), math.nan),
        lambda: torch.randn(4, 8, 8) * math.inf,
        lambda: torch.randn(32, 32).masked_fill(torch.eye(32) > 0, -math.inf),
        lambda: torch.randn(4, 1024, 1024),
        lambda: torch.zeros(0, 4),
        lambda: torch.arange(256).view(16, 16),
    ],
)
def test_ordinary_ones_are_not(make):
    assert structure_of(make()) == ""


def orthogonal(*shape):
    return nn.init.orthogonal_(torch.empty(shape))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: orthogonal(512, 512), "right angles"),
        (lambda: orthogonal(1024, 64), "right angles"),
        (lambda: orthogonal(64, 16, 3, 3), "right angles"),
        (lambda: torch.randn(512, 16) @ torch.randn(16, 512), "fewer dimensions"),
        (lambda: torch.randn(2000, 8) @ torch.randn(8, 3000), "fewer dimensions"),
        (lambda: torch.randn(1, 64, 64).repeat(8, 1, 1), "repeat"),
        (lambda: torch.randn(4, 64).repeat(2, 1) * torch.rand(8, 1), "repeat"),
        (lambda: torch.randn(64, 1, 7, 1) * torch.randn(64, 1, 1, 7), "products"),
        (lambda: torch.randn(2, 2048, 1) * torch.randn(2, 1, 2048), "products"),
        (lambda: torch.arange(2.0, 18.0).log().repeat(64, 1), "fewer dimensions"),
        (lambda: torch.block_diag(*torch.randn(8, 16, 16)), "zeros"),
    ],
)
def test_what_training_would_undo_is(make, said):
    assert said in structure_of(make())
    assert said in structure_of(nn.Parameter(make()))
