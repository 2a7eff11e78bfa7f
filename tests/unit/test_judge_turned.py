"""Signs of what started as constants: which turn, and where turning would make another model."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402 - torch
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402 - torch
from pike_hpc.evaluate.judge_turned import TURNED, turn_constants, turn_signs  # noqa: E402 - torch
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402 - torch

pytestmark = pytest.mark.torch


def made(seed=1):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def x():
    return torch.randn(8, 64, generator=made())


def scale(value=1.0, count=64):
    return nn.Parameter(torch.full((count,), value))


def test_an_eighth_turns_and_of_few_at_least_one():
    many, few = torch.ones(8000), torch.ones(2)
    turn_signs(many, made())
    assert float((many < 0).double().mean()) == pytest.approx(TURNED, rel=0.2)
    turn_signs(few, made())
    assert (few < 0).any()


STAY = {
    "a root": lambda s, x: x * s.sqrt(),
    "a logarithm of one number": lambda s, x: x * math.log(float(s[0])) * math.log(float(s.min())),
    "an assertion": lambda s, x: x * s if bool((s > 0).all()) else 1 / 0,
    "a matrix that must be positive": lambda s, x: x @ torch.linalg.cholesky(torch.diag(s)),
    "complex numbers": lambda s, x: torch.complex(x, x) * s.log(),
    "no floating answer": lambda s, x: (x * s.sqrt()).argmax(-1),
    "a rate of decay": lambda s, x: torch.exp(-30.0 * s) * x,
    "a rate of decay before a norm": lambda s, x: nn.functional.layer_norm(
        torch.exp(-s * torch.arange(64.0)) @ x.T, (8,)
    ),
}


@pytest.mark.parametrize("kind", STAY)
def test_what_is_no_scale_stays(kind, x):
    parameter = scale()
    assert turn_constants([parameter], lambda: STAY[kind](parameter, x), made()) == 0
    assert torch.equal(parameter, torch.ones(64))


TURN = {
    "a scale": lambda s, x: x * s,
    "beside a mask": lambda s, x: torch.softmax(x * s + torch.eye(8, 64).log(), -1),
    "written with out=": lambda s, x: torch.mul(x, s, out=torch.empty_like(x)),
    "read by numpy": lambda s, x: x * s * float((x * s).numpy().std()),
    "of complex numbers": lambda s, x: torch.complex(x, x) * s,
}


@pytest.mark.parametrize("kind", TURN)
def test_a_scale_turns(kind, x):
    parameter = scale()
    assert turn_constants([parameter], lambda: TURN[kind](parameter, x), made()) == 1
    assert (parameter < 0).any()


def test_a_single_scale_is_as_often_turned_as_not():
    negative = 0
    for seed in range(40):
        scale = nn.Parameter(torch.tensor(1.0))
        turn_constants(
            [scale], lambda s=scale: s * torch.ones(8), torch.Generator().manual_seed(seed)
        )
        negative += bool(scale < 0)
    assert 10 <= negative <= 30


def test_of_several_those_turn_that_may(x):
    gain, root = scale(), scale()
    assert turn_constants([root, gain], lambda: x * gain * root.sqrt(), made()) == 1
    assert (gain < 0).any()
    assert not (root < 0).any()


REMEMBERS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.gain = nn.Linear(16, 16), nn.Parameter(torch.ones(16))

    def forward(self, x):
        if not hasattr(self, "folded"):
            self.folded = (self.fc.weight * self.gain[:, None]).detach()
        return x @ self.folded.T


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""


def test_what_a_model_made_of_its_weights_meanwhile_is_forgotten():
    task = Task(suite="tests", id="1", name="remembers", source=REMEMBERS)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"key"))
    weight, gain = (truth.model.state_dict()[name] for name in ("fc.weight", "gain"))
    assert (gain < 0).any()
    seen = torch.Generator().manual_seed(3)
    inputs = torch.randn(8, 16, generator=seen)
    assert torch.allclose(truth.model(inputs), inputs @ (weight * gain[:, None]).T, atol=1e-5)
    truth.close()
