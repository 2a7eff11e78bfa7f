"""Inputs beyond a task's own: asked where the reference is right there, and nowhere else."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_memory import views  # noqa: E402
from pike_hpc.evaluate.judge_range import FACTOR, wide_range  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_signal import Signal  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 32)

    def forward(self, x, *more):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@pytest.fixture
def of():
    """`of(body, inputs) -> Truth, WideRange | None`, of a task with such a forward."""
    made = []

    def make(body, inputs="torch.randn(8, 16)"):
        source = SOURCE.format(body=body, inputs=inputs)
        task = Task(suite="tests", id="1", name="tiny", source=source)
        truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"key"))
        made.append(truth)
        return truth, wide_range(truth, Signal(truth))

    yield make
    for truth in made:
        truth.close()


def test_the_input_is_larger_and_its_truth_its_own(of):
    truth, wide = of("return torch.softmax(self.fc(x), 1)")
    (x,) = views(truth.frame.input_slots, wide.packed)
    (plain,) = views(truth.frame.input_slots, truth.pack(truth.range_seeds[0]))
    assert torch.equal(x, FACTOR * plain)
    with torch.inference_mode():
        scores = truth.model.fc(x).double()
    assert not wide.grossly_wrong([torch.softmax(scores, 1)])
    overflowed = torch.exp(scores.float())
    assert wide.grossly_wrong([overflowed / overflowed.sum(1, keepdim=True)])
    assert wide.grossly_wrong([torch.zeros(8, 32)])


def test_answers_to_plain_inputs_stay_what_they_were(of):
    truth, _ = of("return self.fc(x)")
    before = truth.natively(7)
    with truth.moved(lambda number, leaf: leaf * FACTOR):
        assert not torch.allclose(truth.natively(7)[0], before[0])
    assert torch.equal(truth.natively(7)[0], before[0])


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("return self.fc(x)", "torch.rand(8, 16)"),
        ("return self.fc(x.float() / 9)", "torch.randint(-9, 9, (8, 16))"),
        ("return self.fc(x)[:, (x[0].abs() * 4).long().clamp(0, 31)]", "torch.randn(8, 16)"),
        ("return torch.exp(self.fc(x))", "torch.randn(8, 16)"),
        ("return torch.sin(3e4 * self.fc(x))", "torch.randn(8, 16)"),
    ],
    ids=["of one sign", "integers", "indices", "overflows itself", "wrong itself"],
)
def test_where_the_reference_tells_nothing_nothing_is_asked(of, body, inputs):
    assert of(body, inputs)[1] is None


@pytest.mark.parametrize(
    ("constant", "moved"),
    [
        ("torch.full((16,), 0.3)", lambda t: (t == 0.6).all()),
        ("torch.zeros(16)", lambda t: t.std()),
    ],
    ids=["a number", "zeros"],
)
def test_what_every_draw_has_is_moved_and_nothing_else(of, constant, moved):
    truth, wide = of("return self.fc(x * (1 + more[0]))", f"torch.randn(8, 16), {constant}")
    x, other = views(truth.frame.input_slots, wide.packed)
    plain, was = views(truth.frame.input_slots, truth.pack(truth.range_seeds[0]))
    assert torch.equal(x, plain)
    assert moved(other) > 0.2
    with torch.no_grad():
        right, kept = (truth.model(x, which).double() for which in (other, was))
    assert not wide.grossly_wrong([right])
    assert wide.grossly_wrong([kept])


@pytest.mark.parametrize("constant", ["torch.tensor(3)", "torch.ones(16).bool()", "torch.rand(16)"])
def test_whole_numbers_and_what_is_drawn_are_not_moved(of, constant):
    assert of("return self.fc(x * (1 + more[0]))", f"torch.randn(8, 16), {constant}")[1] is None


@pytest.mark.parametrize(
    ("body", "coarse"), [("return self.fc(x)", True), ("return torch.sin(self.fc(x))", False)]
)
def test_a_precision_that_is_lost_there_is_not_asked(of, body, coarse):
    _, wide = of(body)
    assert wide.coarse_too is coarse
