"""Inputs beyond a task's own: asked where the reference is right there, and nowhere else."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_memory import views  # noqa: E402
from pike_hpc.evaluate.judge_moves import FACTOR, MILD  # noqa: E402
from pike_hpc.evaluate.judge_range import wide_range  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_signal import Signal  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task, Tier  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.rnn = nn.Linear(16, 32), nn.LSTM(16, 32)

    def forward(self, x, *more):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


DRAWN = "torch.randn(64, 16)", "torch.rand(64, 16)", "-torch.rand(64, 16)"


@pytest.fixture
def of():
    """`of(body, inputs) -> Truth, looks by name`, of a task with such a forward."""
    made = []

    def make(body, inputs="torch.randn(8, 16)"):
        source = SOURCE.format(body=body, inputs=inputs)
        task = Task(suite="tests", id="1", name="tiny", source=source)
        truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"key"))
        made.append(truth)
        signal = Signal(truth)
        signal.call_s = 0.0  # however busy this machine is
        wide = wide_range(truth, signal)
        return truth, {look.name: look for look in wide.looks} if wide else {}

    yield make
    for truth in made:
        truth.close()


def inputs_of(truth, look):
    """Inputs of a look, and what they were before they were moved."""
    packed = look.packed, truth.pack(truth.range_seeds[0])
    return (views(truth.frame.input_slots, each) for each in packed)


def is_lost(look, *answer, tier=Tier.HALF):
    return look.grossly_wrong(answer, tier)


def test_the_input_is_larger_and_its_truth_its_own(of):
    truth, looks = of("return torch.softmax(self.fc(x), 1)")
    (x,), (plain,) = inputs_of(truth, looks["larger"])
    assert torch.equal(x, FACTOR * plain)
    with torch.inference_mode():
        scores = truth.model.fc(x).double()
    assert not is_lost(looks["larger"], torch.softmax(scores, 1))
    overflowed = torch.exp(scores.float())
    assert is_lost(looks["larger"], overflowed / overflowed.sum(1, keepdim=True))
    assert is_lost(looks["larger"], torch.zeros(8, 32))


@pytest.mark.parametrize(
    ("divided_by", "tiers"),
    [(0.01, {Tier.FP32, Tier.HALF}), (2e-4, {Tier.FP32})],
    ids=["grossly", "finely"],
)
def test_what_is_cold_for_usual_inputs_is_not_for_smaller_ones(of, divided_by, tiers):
    body = f"return {divided_by} * torch.logsumexp(self.fc(x) / {divided_by}, 1)"
    truth, looks = of(body, "torch.randn(512, 16)")
    (x,), (plain,) = inputs_of(truth, looks["smaller"])
    assert torch.equal(x, plain / FACTOR)
    with torch.no_grad():
        scores = truth.model.fc(x)
    right = divided_by * torch.logsumexp(scores / divided_by, 1)
    for tier in (Tier.FP32, Tier.HALF):
        assert not is_lost(looks["smaller"], right, tier=tier)
        assert is_lost(looks["smaller"], scores.amax(1), tier=tier) is (tier in tiers)


def test_a_last_digit_is_nobodys_fault_where_a_level_hides_the_signal(of):
    truth, looks = of("return 100 + (x * 4096).round() / 4096")
    (x,), _ = inputs_of(truth, looks["smaller"])
    answer = 100 + (x * 4096).round() / 4096  # without any error
    next_number = torch.nextafter(answer, torch.tensor(torch.inf))
    assert not is_lost(looks["smaller"], next_number, tier=Tier.FP32)
    assert is_lost(looks["smaller"], answer + 0.01, tier=Tier.FP32)


def test_numbers_of_one_sign_are_moved_mildly_and_others_beside_them_more(of):
    truth, looks = of("return self.fc(x * more[0])", "torch.rand(8, 16), torch.randn(16)")
    for name, powers in (("larger", (MILD, FACTOR)), ("smaller", (1 / MILD, 1 / FACTOR))):
        for x, plain, by in zip(*inputs_of(truth, looks[name]), powers, strict=True):
            assert torch.equal(x, by * plain)


@pytest.mark.parametrize(
    "labels",
    [
        "(torch.rand(8, 16) > 0.5).float()",
        "torch.randint(0, 2, (8, 16)) * 2.0 - 1",
        "torch.randint(0, 9, (8, 16))",
        "torch.rand(8, 16) > 0.5",
    ],
    ids=["a mask", "either of two", "integers", "booleans"],
)
def test_beside_others_whole_numbers_stay(of, labels):
    truth, looks = of("return self.fc(x * more[0])", f"torch.rand(8, 16), {labels}")
    assert looks.keys() == {"larger", "smaller", "coarser", "shifted", "peaked", "banded"}
    for look in looks.values():
        (x, other), (plain, was) = inputs_of(truth, look)
        assert torch.equal(other, was)
        assert not torch.equal(x, plain)


@pytest.mark.parametrize(
    "drawn", ["torch.randn(64, 16)", "torch.rand(64, 16)", "-torch.rand(64, 16)"]
)
def test_a_mean_is_moved_and_a_sign_is_not(of, drawn):
    truth, looks = of("return self.fc(x)", drawn)
    (x,), (plain,) = inputs_of(truth, looks["shifted"])
    if "randn" in drawn:
        assert x.mean() > 1.2
        assert x.std() == pytest.approx(plain.std().item(), rel=1e-3)
    else:
        assert torch.equal(x.sign(), plain.sign())
        assert x.mean() == pytest.approx(plain.mean().item(), rel=1e-3)
        assert x.std() == pytest.approx(plain.std().item() / 2, rel=1e-3)


def test_a_mean_that_the_task_never_has_is_to_be_taken_off(of):
    truth, looks = of("return nn.functional.layer_norm(x, (16,))", "torch.randn(64, 16)")
    (x,), _ = inputs_of(truth, looks["shifted"])
    assert not is_lost(looks["shifted"], nn.functional.layer_norm(x, (16,)))
    assert is_lost(looks["shifted"], x / x.square().mean(1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    "drawn", ["torch.randn(64, 16)", "torch.rand(64, 16)", "-torch.rand(64, 16)"]
)
def test_peaked_inputs_have_their_range_and_little_else(of, drawn):
    truth, looks = of("return self.fc(x)", drawn)
    (x,), (plain,) = inputs_of(truth, looks["peaked"])
    assert torch.equal(x.sign(), plain.sign())
    assert x.abs().max() == plain.abs().max()
    assert (x.abs() < 0.1 * x.abs().max()).float().mean() > 0.5


@pytest.mark.parametrize("drawn", ["torch.randn(6, 40, 8)", "torch.rand(6, 40, 8)"])
def test_banded_inputs_are_large_in_few_slices_of_each_row(of, drawn):
    truth, looks = of("return self.fc(x.flatten(1)[:, :16])", drawn)
    (x,), (plain,) = inputs_of(truth, looks["banded"])
    factors = x / plain
    assert set(factors.unique().tolist()) == {1 / 64, 1 / 8, 1.0}
    whole = (factors == 1.0).sum((1, 2))
    assert whole.tolist() == [5 * 1] * 6


def test_what_is_banded_is_not_too_faint_and_symmetric_as_before(of):
    body = "return self.fc(x.flatten(1)[:, :16]) + more[0].sum()"
    a = "(lambda a: a + a.mT)(torch.randn(24, 24))"
    truth, looks = of(body, f"torch.randn(3, 16, 9, 8), {a}")
    (x, a), (plain, was) = inputs_of(truth, looks["banded"])
    assert set((x / plain).unique().tolist()) == {1 / 64, 1 / 8, 1.0}
    assert torch.equal(a, a.mT)
    assert set((a / was).unique().tolist()) == {1 / 64, 1 / 8, 1.0}


def test_a_statistic_of_some_is_not_that_of_all(of):
    truth, looks = of("return nn.functional.layer_norm(x, (64, 16))", "torch.randn(8, 64, 16)")
    (x,), _ = inputs_of(truth, looks["banded"])
    assert not is_lost(looks["banded"], nn.functional.layer_norm(x, (64, 16)), tier=Tier.FP32)
    for step in (2, 4, 8):
        var, mean = torch.var_mean(x[:, ::step], dim=(1, 2), correction=0, keepdim=True)
        assert is_lost(looks["banded"], (x - mean) * var.rsqrt())


def test_numbers_along_one_axis_and_one_alone_are_banded_too(of):
    inputs = "torch.randn(16), torch.tensor(0.3) + torch.rand(())"
    truth, looks = of("return self.fc(x) * more[0]", inputs)
    (x, alone), (plain, was) = inputs_of(truth, looks["banded"])
    assert sorted((x / plain).tolist()) == [0.125] * 14 + [1.0] * 2
    assert alone == was


def test_what_is_not_finite_stays_where_inputs_are_reshaped(of):
    inputs = (
        "torch.randn(8, 16), torch.randn(8, 32).masked_fill(torch.rand(8, 32) < 0.1, -torch.inf)"
    )
    truth, looks = of("return torch.softmax(self.fc(x) + more[0], 1)", inputs)
    for name in ("coarser", "shifted", "peaked", "banded"):
        (_, masked), (_, was) = inputs_of(truth, looks[name])
        assert torch.equal(masked.isfinite(), was.isfinite())


def test_coarse_inputs_are_alike(of):
    truth, looks = of("y = self.fc(x)\n        return y * (x == x.amax(0)).sum()")
    (x,), (plain,) = inputs_of(truth, looks["coarser"])
    assert len(x.unique()) < 64 < len(plain.unique()) == 128
    assert float(((x - plain) / plain).abs().max()) <= 0.25
    with torch.no_grad():
        scores = truth.model.fc(x)
    assert not is_lost(looks["coarser"], scores * (x == x.amax(0)).sum())
    assert is_lost(looks["coarser"], scores * 16)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("return self.fc(x.sort(1).values)", True),
        ("return self.fc(x.topk(16).values)", True),
        ("return self.fc(x) * (1 + x.argmax(0).float())[0]", False),
        ("v, i = x.sort(1)\n        return self.fc(v + i / 9)", False),
        ("s = x.abs().amax() / 7\n        return s * (x / s).round()", False),
        ("return (x * 3).round() / 3", False),
    ],
    ids=["sorted", "largest", "the first of all", "an order", "rounded", "rounded halves"],
)
def test_of_ties_nobody_is_told_which_to_choose_nor_how_to_round(of, body, asked):
    assert ("coarser" in of(body, "torch.randn(64, 16)")[1]) is asked


def test_of_many_numbers_one_input_alone_is_asked(of):
    many = "torch.zeros(2**27, dtype=torch.int8)"
    assert of("return self.fc(x)", f"torch.randn(8, 16), {many}")[1].keys() == {"larger"}


def test_what_is_called_input_is_not_what_puts(of):
    assert "larger" in of("return self.rnn(x)[0]")[1]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("return self.fc(x.float() / 9)", "torch.randint(-9, 9, (8, 16))"),
        ("return self.fc(x)[:, (x[0].abs() * 4).long().clamp(0, 31)]", "torch.randn(8, 16)"),
    ],
    ids=["integers", "indices"],
)
def test_where_the_reference_tells_nothing_nothing_is_asked(of, body, inputs):
    assert not of(body, inputs)[1]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("return torch.exp(self.fc(x))", "larger"),
        ("return torch.sin(3e4 * self.fc(x))", "larger"),
        ("return 1e6 + self.fc(x)", "smaller"),
        ("return torch.log((x[:1, :1] - x[1:]).abs())", "coarser"),
    ],
    ids=["overflows itself", "wrong itself", "hidden by a level", "not finite"],
)
def test_one_input_tells_nothing_and_others_do(of, body, name):
    assert name not in of(body)[1]


@pytest.mark.parametrize(
    ("constant", "moved"),
    [
        ("torch.full((16,), 0.3)", lambda t: (t == 0.6).all()),
        ("torch.zeros(16)", lambda t: t.std()),
    ],
    ids=["a number", "zeros"],
)
def test_what_every_draw_has_is_moved_and_nothing_else(of, constant, moved):
    truth, looks = of("return self.fc(x * (1 + more[0]))", f"torch.randn(8, 16), {constant}")
    look = looks["otherwise"]
    (x, other), (plain, was) = inputs_of(truth, look)
    assert torch.equal(x, plain)
    assert moved(other) > 0.2
    with torch.no_grad():
        right, kept = (truth.model(x, which).double() for which in (other, was))
    assert not is_lost(look, right)
    assert is_lost(look, kept)


@pytest.mark.parametrize("constant", ["torch.tensor(3)", "torch.ones(16).bool()", "torch.rand(16)"])
def test_whole_numbers_and_what_is_drawn_are_not_moved(of, constant):
    looks = of("return self.fc(x * (1 + more[0]))", f"torch.randn(8, 16), {constant}")[1]
    assert looks
    assert "otherwise" not in looks


@pytest.mark.parametrize(
    ("body", "coarse"),
    [
        ("return self.fc(x)", {"larger", "smaller", "coarser"}),
        ("return torch.sin(self.fc(x))", {"smaller", "coarser"}),
        ("return torch.sin(x)", {"smaller", "coarser"}),
        ("return 1 + self.fc(x)", {"larger", "coarser"}),
        ("return (x / 8) ** 4", {"larger", "coarser"}),
    ],
    ids=["kept", "of products", "of each number", "beside a level", "small powers"],
)
def test_a_precision_that_is_lost_there_is_not_asked(of, body, coarse):
    looks = of(body)[1]
    assert looks.keys() == {"larger", "smaller", "coarser", "shifted", "peaked", "banded"}
    asked = {name for name, look in looks.items() if look.coarse_too}
    assert asked & {"larger", "smaller", "coarser"} == coarse
