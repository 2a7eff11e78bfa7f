"""Weights find their places in programs with tensors of their own, by what these are called."""

import pytest

torch = pytest.importorskip("torch")
from builders.given_weights import (  # noqa: E402
    IMAGE,
    ROW,
    C,
    Line,
    Post,
    Pre,
    answers_alike,
    kept,
)
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch]


class NoCounter(nn.Module):
    """A norm of its own, without num_batches_tracked and with its tensors at the root."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))
        self.register_buffer("running_mean", torch.zeros(C))
        self.register_buffer("running_var", torch.ones(C))
        self.conv = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        norm = self.running_mean, self.running_var, self.weight, self.bias
        return self.conv(torch.relu(nn.functional.batch_norm(x, *norm)))


class KeepsScratch(nn.Module):
    """A norm that it does not need as a layer, and a buffer of the same size that is its own."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.gain, self.shift = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))
        self.register_buffer("running_mean", torch.zeros(C))
        self.register_buffer("running_var", torch.ones(C))
        self.register_buffer("zeros", torch.zeros(C))

    def forward(self, x):
        norm = self.running_mean, self.running_var, self.gain, self.shift
        return nn.functional.batch_norm(self.conv(x), *norm) + self.zeros.view(-1, 1, 1)


class NamesStatistics(nn.Module):
    """A norm of its own whose buffers are called otherwise than torch calls them."""

    def __init__(self):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))
        self.register_buffer("mean", torch.zeros(C))
        self.register_buffer("bn_var", torch.ones(C))
        self.conv = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        norm = self.mean, self.bn_var, self.gamma, self.beta
        return self.conv(torch.relu(nn.functional.batch_norm(x, *norm)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.one = nn.LayerNorm(C), nn.Linear(C, C)
        self.norm2, self.two = nn.LayerNorm(C), nn.Linear(C, C)

    def forward(self, x):
        return self.two(self.norm2(self.one(self.norm1(x))))


class Says(nn.Module):
    """Norms last, each bias before its weight: the names say what is what, the order doesn't."""

    def __init__(self):
        super().__init__()
        for name, shape in (("fc1", (C, C)), ("fc2", (C, C)), ("ln1", (C,)), ("ln2", (C,))):
            self.register_parameter(f"{name}_b", nn.Parameter(torch.zeros(C)))
            self.register_parameter(f"{name}_w", nn.Parameter(torch.ones(shape)))

    def forward(self, x):
        layer_norm, linear = nn.functional.layer_norm, nn.functional.linear
        x = linear(layer_norm(x, (C,), self.ln1_w, self.ln1_b), self.fc1_w, self.fc1_b)
        return linear(layer_norm(x, (C,), self.ln2_w, self.ln2_b), self.fc2_w, self.fc2_b)


def named(words, listed=list):
    """A Mixed whose parameters are all its own, under these names and as they are `listed`."""
    names = words.split()
    shapes = dict(zip(names, [(C,), (C,), (C, C), (C,)] * 2, strict=True))

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            for name in listed(names):
                self.register_parameter(name, nn.Parameter(torch.rand(shapes[name])))

        def forward(self, x):
            p = [self.get_parameter(name) for name in names]
            for gain, shift, w, b in (p[:4], p[4:]):
                x = nn.functional.linear(nn.functional.layer_norm(x, (C,), gain, shift), w, b)
            return x

    return Named


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x):
        return nn.functional.layer_norm(x, (C,), self.weight, self.bias)


class OwnNorms(nn.Module):
    """Norms as layers of its own, beside plain parameters that torch lists before them."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = OwnNorm(), OwnNorm()
        self.w_one, self.b_one = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.zeros(C))
        self.w_two, self.b_two = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.zeros(C))

    def forward(self, x):
        x = nn.functional.linear(self.ln1(x), self.w_one, self.b_one)
        return nn.functional.linear(self.ln2(x), self.w_two, self.b_two)


class OwnLayers(nn.Module):
    """The same, with layers of torch beside them."""

    def __init__(self):
        super().__init__()
        self.ln1, self.one = OwnNorm(), nn.Linear(C, C)
        self.ln2, self.two = OwnNorm(), nn.Linear(C, C)

    def forward(self, x):
        return self.two(self.ln2(self.one(self.ln1(x))))


class LineByLetters(nn.Module):
    """A scale, which the reference lists first; its name says nothing, and no norm waits."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.s = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return nn.functional.linear(x, self.w, self.b) * self.s


class Stages(nn.Module):
    """Two norms whose statistics are told apart by number."""

    def __init__(self):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(C), nn.BatchNorm2d(C)

    def forward(self, x):
        return self.bn2(torch.relu(self.bn1(x)))


def numbered(mean, var):
    """Stages with norms of its own, whose buffers have these names with a number each."""

    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            for k in (1, 2):
                self.register_parameter(f"gamma{k}", nn.Parameter(torch.ones(C)))
                self.register_parameter(f"beta{k}", nn.Parameter(torch.zeros(C)))
                self.register_buffer(mean.format(k), torch.zeros(C))
                self.register_buffer(var.format(k), torch.ones(C))

        def norm(self, x, k):
            buffers = [self.get_buffer(name.format(k)) for name in (mean, var)]
            learned = [self.get_parameter(f"{name}{k}") for name in ("gamma", "beta")]
            return nn.functional.batch_norm(x, *buffers, *learned)

        def forward(self, x):
            return self.norm(torch.relu(self.norm(x, 1)), 2)

    return Numbered


STYLES = {
    "a norm without its counter": (Pre, NoCounter, IMAGE),
    "with a buffer of its own": (Post, KeepsScratch, IMAGE),
    "statistics under other names": (Pre, NamesStatistics, IMAGE),
    "in an order of its own, with names that say what": (Mixed, Says, ROW),
    "gamma and beta beside other biases": (
        Mixed,
        named("gamma1 beta1 W_one b_one gamma2 beta2 W_two b_two"),
        ROW,
    ),
    "short names, of which some say nothing": (
        Mixed,
        named("g1 b1 wo bo g2 b2 w1 c1"),
        ROW,
    ),
    "names that all say something": (
        Mixed,
        named("gamma1 beta1 w1 b1 gamma2 beta2 w2 b2"),
        ROW,
    ),
    "gamma and beta in an order of their own": (
        Mixed,
        named("gamma_1 beta_1 W_1 b_1 gamma_2 beta_2 W_2 b_2", listed=sorted),
        ROW,
    ),
    "underscores for dots, in an order of its own": (
        Mixed,
        named(
            "norm1_weight norm1_bias one_weight one_bias "
            "norm2_weight norm2_bias two_weight two_bias",
            listed=reversed,
        ),
        ROW,
    ),
    "letters, where no norm waits": (Line, LineByLetters, ROW),
    "norms of its own beside plain parameters": (Mixed, OwnNorms, ROW),
    "norms of its own beside layers": (Mixed, OwnLayers, ROW),
    "numbered statistics": (Stages, numbered("running_mean{}", "running_var{}"), IMAGE),
    "numbered statistics, apart": (Stages, numbered("mean_{}", "var_{}"), IMAGE),
}


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    assert answers_alike(*STYLES[style])


@pytest.mark.parametrize("program", [NoCounter, NamesStatistics])
def test_it_knows_that_it_guessed_and_that_it_will_last(program):
    assert kept(Pre, program) == (False, True)
