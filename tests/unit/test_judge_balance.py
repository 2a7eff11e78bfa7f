"""Units of layers without norms: they turn, for whatever a task draws."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.correctness import rms, rms_difference  # noqa: E402
from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_balance import FAR, QUIET, balance_units  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task, Tier  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH = 64


def stack(depth, width=WIDTH, bias=True):
    layers = [[nn.Linear(width, width, bias=bias), nn.ReLU()] for _ in range(depth)]
    return nn.Sequential(*[part for pair in layers for part in pair], nn.Linear(width, 8))


class Forward(nn.Module):
    """One layer of 64 units and the rest as a test has it."""

    def __init__(self, forward, **others):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        nn.init.normal_(self.first.bias, std=4.0)
        for name, value in others.items():
            setattr(self, name, value)
        self.as_written = forward

    def forward(self, x):
        return self.as_written(self, x)


def drawn(number, rows=128, of=torch.rand, shape=(WIDTH,)):
    return of(rows, *shape, generator=torch.Generator().manual_seed(number))


def balanced(model, draw=drawn):
    """Names of the parameters that change."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    count = balance_units(model.eval(), lambda n: model(draw(n)))
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert bool(count) == bool(changed)
    return changed


def before_relus(model, x):
    """What each ReLU of a stack is given, a unit a row."""
    found = []
    for part in model:
        if isinstance(part, nn.ReLU):
            found.append(x.detach().movedim(1, 0).flatten(1).clone())
        x = part(x)
    return found


def never_turn(numbers):
    on = (numbers > 0).float().mean(1)
    return float(((on == 0) | (on == 1)).float().mean())


def test_units_of_a_plain_stack_turn_for_inputs_never_seen():
    torch.manual_seed(0)
    model = stack(6)
    assert never_turn(before_relus(model, drawn(1000, 512))[-1]) > 0.5
    balanced(model)
    for numbers in before_relus(model, drawn(1000, 512)):
        assert never_turn(numbers) == 0.0
        off = numbers.mean(1).abs() / numbers.std(1)
        assert off.max() < 1.5 * FAR
        assert 0.7 * QUIET < numbers.std(1).square().mean().sqrt() < 2.0


@pytest.mark.parametrize("rows", [128, 1])
def test_a_deep_stack_answers_its_input_and_float16_sees_it(rows):
    torch.manual_seed(0)
    model = stack(16)
    x, y = (drawn(n, rows, torch.randn) for n in (2000, 2001))
    with torch.no_grad():
        assert rms_difference(model(x), model(y)) < 1e-4 * rms(model(x))
        balanced(model, lambda n: drawn(n, rows, torch.randn))
        signal = rms_difference(model(x), model(y))
        assert signal > 0.3 * rms(model(x))
        exact = model(x)
        assert rms_difference(model.half()(x.half()).float(), exact) < 0.02 * signal


@pytest.mark.parametrize("in_place", [False, True])
def test_kernels_are_balanced_by_channel_and_before_a_pool(in_place):
    torch.manual_seed(0)
    layers, channels = [], 3
    for _ in range(5):
        relu = nn.ReLU(inplace=in_place)
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(3, 1, 1), relu]
        channels = 16
    model = nn.Sequential(*layers)

    def draw(number):
        return drawn(number, 4, shape=(3, 16, 16))

    assert never_turn(before_relus(model, draw(1000))[-1]) > 0.3
    balanced(model, draw)
    for numbers in before_relus(model, draw(1000)):
        assert never_turn(numbers) == 0.0


BALANCED = {
    "relu": lambda m, x: m.last(F.relu(m.first(x))),
    "a method": lambda m, x: m.last(m.first(x).relu_()),
    "a clamp": lambda m, x: m.last(m.first(x).clamp(min=0)),
    "gelu": lambda m, x: m.last(F.gelu(m.first(x))),
    "addmm": lambda m, x: m.last(torch.addmm(m.first.bias, x, m.first.weight.mT).relu()),
    "a product and a sum": lambda m, x: m.last((x @ m.first.weight.mT + m.first.bias).relu()),
    "beside a sum": lambda m, x: m.last((x + m.first(x)).relu()),
    "dropout": lambda m, x: m.last(F.dropout(m.first(x), 0.5, m.training).relu()),
}
LEFT = {
    "a gate": lambda m, x: m.last(torch.sigmoid(m.first(x))),
    "a rate": lambda m, x: m.last(F.softplus(m.first(x))),
    "another clamp": lambda m, x: m.last(m.first(x).clamp(min=-1.0)),
    "a norm": lambda m, x: m.last(F.layer_norm(m.first(x), (WIDTH,)).relu()),
    "no units": lambda m, x: m.last(m.first(x)),
    "what was written in place": lambda m, x: m.last(F.relu(m.first(x).tanh_())),
}


@pytest.mark.parametrize("name", BALANCED)
def test_however_it_is_written(name):
    model = Forward(BALANCED[name])
    assert balanced(model) == {"first.bias"}


@pytest.mark.parametrize("name", LEFT)
def test_what_bends_nothing_is_left_alone(name):
    assert not balanced(Forward(LEFT[name]))


def test_what_is_not_learned_stays():
    model = Forward(BALANCED["relu"])
    model.first.requires_grad_(False)
    assert not balanced(model)
    assert not balanced(stack(4, bias=False))


def quiet(forward, **others):
    model = Forward(forward, **others)
    with torch.no_grad():
        model.first.weight.mul_(1e-3)
        model.first.bias.zero_()
    return model


def test_a_layer_that_has_all_but_vanished_gets_larger_weights():
    model = quiet(BALANCED["relu"])
    assert balanced(model) == {"first.weight", "first.bias"}
    assert 0.5 < model.first(drawn(1000)).std(0).square().mean().sqrt() < 2.0


def test_weights_that_others_use_stay_as_large_as_they_are():
    model = quiet(lambda m, x: m.last(F.relu(m.first(x)) + F.linear(x, m.first.weight)))
    assert balanced(model) == {"first.bias"}


def test_what_is_constant_is_not_blown_up():
    model = Forward(BALANCED["relu"])
    assert not balanced(model, lambda n: torch.ones(128, WIDTH))


def test_where_it_would_not_be_finite_nothing_changes():
    model = Forward(lambda m, x: m.last(F.relu(m.first(x))) / 0.0)
    assert not balanced(model)


def test_a_forward_that_fails_changes_nothing():
    calls = []

    def forward(model, x):
        calls.append(x)
        if len(calls) > 2:
            raise ValueError("no more")
        return BALANCED["relu"](model, x)

    assert not balanced(Forward(forward))
    assert len(calls) == 3


def test_what_calls_leave_in_the_model_is_gone():
    def forward(model, x):
        y = model.first(x)
        model.kept = model.kept + y.mean()
        return model.last(y.relu())

    model = Forward(forward, kept=torch.zeros(()))
    balanced(model)
    assert float(model.kept) == 0.0


TASK = f"""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [[nn.Linear({WIDTH}, {WIDTH}), nn.ReLU()] for _ in range(16)]
        self.layers = nn.Sequential(*[p for pair in layers for p in pair], nn.Linear({WIDTH}, 8))

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.rand(64, {WIDTH})]

def get_init_inputs():
    return []
"""


def test_a_task_of_plain_layers_is_admitted():
    loaded = build(Task(suite="tests", id="1", name="stack", source=TASK))
    truth = Truth(loaded, WeightsBy.STATE, torch.device("cpu"), Secrets(b"s"))
    try:
        for numbers in before_relus(truth.model.layers, loaded.inputs(1000)[0]):
            assert never_turn(numbers) < 0.05
        found = admit(truth, loaded.task.digest).admission
        assert found.admitted and found.limits.keys() == set(Tier), found.reason
    finally:
        truth.close()
