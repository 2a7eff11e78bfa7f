"""Units of layers without norms: they turn, for whatever a task draws."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.correctness import rms, rms_difference  # noqa: E402
from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_balance import balance_units  # noqa: E402
from pike_hpc.evaluate.judge_fresh import with_judging_weights  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.evaluate.judge_units import FAR, QUIET, STRAIGHT  # noqa: E402
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


@pytest.mark.parametrize("rows", [128, 12, 1])
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


def force(model, x):
    """Of an energy, which is no more than a layer."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(F.silu(model.first(4.0 * x)).sum(), x)
    return found


def unseen(model, x):
    with torch.inference_mode():
        return model.first(x).sigmoid_()


def halved(y):
    y.view(-1, 8, 8).mul_(0.5)
    return y


BALANCED = {
    "relu": lambda m, x: m.last(F.relu(m.first(x))),
    "a method": lambda m, x: m.last(m.first(x).relu_()),
    "a clamp": lambda m, x: m.last(m.first(x).clamp(min=0)),
    "a clip": lambda m, x: m.last(torch.clip(m.first(x), 0.0)),
    "a hard tanh from zero on": lambda m, x: m.last(F.hardtanh(m.first(x), 0.0, 9.0)),
    "a forward that differentiates": lambda m, x: m.last(force(m, x)),
    "gelu": lambda m, x: m.last(F.gelu(m.first(4.0 * x))),
    "addmm": lambda m, x: m.last(torch.addmm(m.first.bias, x, m.first.weight.mT).relu()),
    "a product and a sum": lambda m, x: m.last((x @ m.first.weight.mT + m.first.bias).relu()),
    "beside a sum": lambda m, x: m.last((x + m.first(x)).relu()),
    "dropout": lambda m, x: m.last(F.dropout(m.first(x), 0.5, m.training).relu()),
}
LEFT = {
    "a part of a bias": lambda m, x: m.last(
        torch.addmm(m.first.bias, x, m.first.weight.mT, beta=0.5).relu()
    ),
    "a bias with two uses": lambda m, x: m.last(F.relu(m.first(x - m.first.bias))),
    "a bias that is used later": lambda m, x: m.last(F.relu(m.first(x)) - m.first.bias),
    "a bias in a list": lambda m, x: m.last(
        F.relu(m.first(x)) - torch.stack([m.first.bias, m.first.bias]).sum(0)
    ),
    "a bias that is added twice": lambda m, x: m.last((m.first(x) + m.first.bias).relu()),
    "a hard tanh": lambda m, x: m.last(F.hardtanh(m.first(x))),
    "a threshold": lambda m, x: m.last(F.threshold(m.first(x), 1.0, 0.0)),
    "what is written for inference alone": lambda m, x: m.last(F.relu(unseen(m, x))),
    "an average": lambda m, x: m.last(F.avg_pool1d(m.first(x), 3, 1, 1).relu()),
    "the largest of units": lambda m, x: m.last(F.max_pool1d(m.first(x), 3, 1, 1).relu()),
    "what was written as a part": lambda m, x: m.last(F.relu(halved(m.first(x)))),
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
        model.first.weight.mul_(1 / 16)
        model.first.bias.zero_()
    return model


def test_a_layer_that_has_all_but_vanished_gets_larger_weights():
    model = quiet(BALANCED["relu"])
    assert balanced(model) == {"first.weight", "first.bias"}
    assert 0.2 < model.first(drawn(1000)).std(0).square().mean().sqrt() < 2.0


SMOOTH = {
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "celu": F.celu,
    "hardswish": F.hardswish,
    "beside a relu": lambda y: F.gelu(y) + F.relu(y),
    "behind a relu": lambda y: F.relu(y) + F.gelu(y),
}


@pytest.mark.parametrize("bends", SMOOTH.values(), ids=SMOOTH)
def test_a_layer_so_small_that_what_follows_is_a_line_gets_larger_weights(bends):
    model, x = (
        quiet(lambda m, x: m.last(bends(m.first(20.0 * x - 10.0)))),
        20.0 * drawn(1000) - 10.0,
    )
    assert QUIET < model.first(x).std(0).square().mean().sqrt() < STRAIGHT
    assert "first.weight" in balanced(model)
    assert 0.6 < model.first(x).std(0).square().mean().sqrt() < 1.5


@pytest.mark.parametrize("bends", [F.relu, F.leaky_relu, F.selu])
def test_what_bends_at_any_size_needs_none(bends):
    assert not balanced(quiet(lambda m, x: m.last(bends(m.first(20.0 * x - 10.0)))))


OTHERS = {
    "a layer without a bias": lambda m, x: F.relu(m.first(x)) + F.linear(x, m.first.weight),
    "a way back": lambda m, x: F.relu(m.first(x)) @ m.first.weight,
    "a sum": lambda m, x: F.relu(0.01 * x + m.first(x)),
    "a list": lambda m, x: (
        F.relu(m.first(x)) + (x @ torch.cat([m.first.weight, m.first.weight]).mT)[:, :WIDTH]
    ),
    "a call that does not bend": lambda m, x: F.relu(m.first(x)) + m.first(x.flip(0)),
    "another call": lambda m, x: F.relu(m.first(F.relu(m.first(x)))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_weights_that_others_use_stay_as_large_as_they_are(name):
    assert balanced(quiet(lambda m, x: m.last(OTHERS[name](m, x)))) <= {"first.bias"}


def test_what_is_moved_and_gains_afterwards_is_what_was_decided():
    """The first draw shows units that are far off, the second ones that have all but vanished."""
    model = Forward(BALANCED["relu"])
    draws = [drawn(0), 0.03 * drawn(1)]
    assert balanced(model, lambda n: draws[n]) == {"first.weight", "first.bias"}
    units = model.first(draws[1])
    assert (units.mean(0).abs() / units.std(0)).max() < 1.2 * FAR


def test_units_of_one_vector_are_known_apart():
    torch.manual_seed(0)
    model = stack(6)
    balanced(model, lambda n: drawn(n, WIDTH, shape=()))
    numbers = before_relus(model, drawn(1000, 512))[-1]
    assert never_turn(numbers) < 0.05


def test_a_stack_of_many_layers_takes_few_calls():
    torch.manual_seed(0)
    model, calls = stack(40), []
    balance_units(model.eval(), lambda n: calls.append(n) or model(drawn(n)))
    assert len(calls) <= 15
    with torch.no_grad():
        one, other = model(drawn(1000)), model(drawn(1001))
    assert rms_difference(one, other) > 0.3 * rms(one)


def test_what_averages_nearly_fix_is_not_blown_up():
    """A unit that is as good as constant keeps its size, whatever the others gain."""
    torch.manual_seed(1)
    first, second, last = nn.Conv2d(3, 32, 3), nn.Linear(32, 32), nn.Linear(32, 8)

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([first, second, last])

        def forward(self, x):
            return last(second(first(x).relu().mean((2, 3))).relu()).softmax(-1)

    def draw(number):
        return drawn(number, 16, shape=(3, 48, 48))

    model = Head()
    balanced(model, draw)
    with torch.no_grad():
        one, other = model(draw(1000)), model(draw(1001))
    assert 0.01 < float(one.min()) < float(one.max()) < 0.5
    assert rms_difference(one, other) > 1e-3 * rms(one)


def test_answers_of_another_kind_leave_everything_as_it_is():
    assert not balanced(Forward(lambda m, x: m.last(F.relu(m.first(x))).to_sparse()))


def test_what_is_constant_is_not_blown_up():
    model = Forward(BALANCED["relu"])
    assert not balanced(model, lambda n: torch.ones(128, WIDTH))


def test_where_larger_weights_would_not_be_finite_biases_alone_move():
    model = quiet(lambda m, x: 25.0 * (1e38 * m.last(F.relu(m.first(x)))))
    assert balanced(model) == {"first.bias"}


def test_where_the_answer_would_forget_its_input_nothing_changes():
    def forward(model, x):
        return model.last(x) * (F.relu(model.first(x)).sum() > 5000.0)

    model = Forward(forward)
    assert bool(model(drawn(0)).any())
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


@pytest.mark.parametrize("seed", [0, 1])
def test_units_behind_norms_are_left_alone_while_those_before_them_move(seed):
    """Norms are calibrated with the old weights, and will be with the new ones."""
    torch.manual_seed(seed)
    parts = [[nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH)] for _ in range(5)]
    model = nn.Sequential(*[part for three in parts for part in three]).eval()
    model, count = with_judging_weights(model, seed, lambda s: [10 + drawn(s, 256)], None)
    assert count == 5
    for numbers in before_relus(model, 10 + drawn(1000, 512)):
        assert never_turn(numbers) < 0.05


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
        assert found.admitted, found.reason
        assert found.limits.keys() == set(Tier)
    finally:
        truth.close()
