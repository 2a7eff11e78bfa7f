"""Layers that a program writes out take their weights, beside the model's own parameters."""

import pytest

torch = pytest.importorskip("torch")
from builders.given_weights import ROW, C, answers_alike  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch]


class Biases(nn.Module):
    """A bias of its own beside layers, two of which are alike."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(C, C), nn.Linear(C, C)
        self.bias = nn.Parameter(torch.rand(C))
        self.norm = nn.LayerNorm(C)

    def forward(self, x):
        return self.norm(torch.relu(self.two(self.one(x))) + self.bias)


class OneBias(nn.Module):
    """A layer without a bias among others, and a bias of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(C, C), nn.Linear(C, C, bias=False)
        self.bias = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return torch.relu(self.two(self.one(x))) + self.bias


def one_bias(words):
    """A OneBias without layers, made of such parameters: w1, b1, w2, bias, in `words`' order."""
    listed = dict(word.split(":") for word in words.split())
    ways = {"w1": (C, C), "b1": (C,), "w2": (C, C), "bias": (C,)}

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            for what, name in listed.items():
                self.register_parameter(name, nn.Parameter(torch.rand(ways[what])))

        def forward(self, x):
            w1, b1, w2, bias = (self.get_parameter(listed[what]) for what in ways)
            x = nn.functional.linear(nn.functional.linear(x, w1, b1), w2)
            return torch.relu(x) + bias

    return Written


class Beside(nn.Module):
    """A bias of its own beside one layer."""

    def __init__(self):
        super().__init__()
        self.one, self.bias = nn.Linear(C, C), nn.Parameter(torch.rand(C))

    def forward(self, x):
        return torch.relu(self.one(x)) + self.bias


def beside(words):
    """A Beside without layers: its weight is `w`, its own bias `bias`, in `words`' order."""
    names = words.split()

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            for name in names:
                shape = (C, C) if name == "w" else (C,)
                self.register_parameter(name, nn.Parameter(torch.rand(shape)))

        def forward(self, x):
            added = next(self.get_parameter(n) for n in names if n not in {"w", "bias"})
            return torch.relu(nn.functional.linear(x, self.w, added)) + self.bias

    return Written


class BesideNamed(Beside):
    """Its own bias has a name that no layer's has."""

    def __init__(self):
        super().__init__()
        self.extra_bias = self.bias
        del self.bias

    def forward(self, x):
        return torch.relu(self.one(x)) + self.extra_bias


class NamedWrittenOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.extra_bias = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.bias = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.w, self.bias)) + self.extra_bias


class KeepsOne(nn.Module):
    """A Biases of which the second layer alone is written out."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(C, C), nn.LayerNorm(C)
        self.w, self.bias = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.extra_bias = nn.Parameter(torch.rand(C))

    def forward(self, x):
        x = nn.functional.linear(self.first(x), self.w, self.bias)
        return self.norm(torch.relu(x) + self.extra_bias)


class Mixes(nn.Module):
    """A matrix and a row of its own beside a layer of their shapes."""

    def __init__(self):
        super().__init__()
        self.mix, self.add = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.one = nn.Linear(C, C)

    def forward(self, x):
        return self.one(torch.relu(x @ self.mix + self.add))


class MixesWrittenOut(nn.Module):
    """Two such pairs, where one layer waits."""

    def __init__(self):
        super().__init__()
        self.m, self.m_b = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.w, self.b = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))

    def forward(self, x):
        return nn.functional.linear(torch.relu(x @ self.m + self.m_b), self.w, self.b)


class MixesApart(nn.Module):
    """The matrix of its own by name, the layer's bias behind it."""

    def __init__(self):
        super().__init__()
        self.add = nn.Parameter(torch.rand(C))
        self.mix, self.b = nn.Parameter(torch.rand(C, C)), nn.Parameter(torch.rand(C))
        self.line = nn.Linear(C, C, bias=False)

    def forward(self, x):
        return self.line(torch.relu(x @ self.mix + self.add)) + self.b


class ShapedBias(Biases):
    """The same, its bias in another shape than a layer's."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(1, C))


def written_out(words, drawn=False):
    """A Biases without layers.

    Its parameters' names as forward uses them, each behind its turn in the constructor: `1:w1`.
    """
    listed = [word.partition(":")[::2] for word in words.split()]
    names = [name for _, name in listed]
    shapes = dict(zip(names, [(C, C), (C,), (C, C), (C,), (C,), (C,), (C,)], strict=True))

    class WrittenOut(nn.Module):
        def __init__(self):
            super().__init__()
            for _, name in sorted(listed):
                made = nn.Parameter(torch.rand(shapes[name]))
                if drawn and made.dim() > 1:
                    nn.init.kaiming_uniform_(made)
                self.register_parameter(name, made)

        def forward(self, x):
            w1, b1, w2, b2, bias, *norm = (self.get_parameter(name) for name in names)
            x = nn.functional.linear(nn.functional.linear(x, w1, b1), w2, b2)
            return nn.functional.layer_norm(torch.relu(x) + bias, (C,), *norm)

    return WrittenOut


STYLES = {
    "a bias beside layers that are written out": (
        Biases,
        written_out("1:w1 2:b1 3:w2 4:bias 5:extra_bias 6:gn_w 7:gn_b"),
        ROW,
    ),
    "and made first": (Biases, written_out("2:w1 3:b1 4:w2 5:b2 1:add 6:gamma 7:beta"), ROW),
    "and drawn as torch draws": (
        Biases,
        written_out("1:w1 2:b1 3:w2 4:bias 5:extra_bias 6:gn_w 7:gn_b", drawn=True),
        ROW,
    ),
    "in a shape of its own": (
        ShapedBias,
        written_out("1:w1 2:b1 3:w2 4:bias 5:bias2 6:gamma 7:beta"),
        ROW,
    ),
    "where a name says whose bias it is": (
        Biases,
        written_out("1:w1 2:one_bias 3:w2 5:two_bias 4:bias 6:gamma 7:beta"),
        ROW,
    ),
    "matrices first, one of which has no bias": (
        OneBias,
        one_bias("w1:w1 w2:w2 b1:b1 bias:bias"),
        ROW,
    ),
    "an own bias before one that says whose it is": (
        Biases,
        written_out("1:w1 2:b1 3:w2 5:linear_bias 4:bias 6:gamma 7:beta"),
        ROW,
    ),
    "an own bias, the layer's before it": (Beside, beside("added w bias"), ROW),
    "an own bias, the layer's last": (Beside, beside("w bias linear_bias"), ROW),
    "an own bias by a name of its own": (BesideNamed, NamedWrittenOut, ROW),
    "one layer kept, one written out": (Biases, KeepsOne, ROW),
    "more pairs than layers": (Mixes, MixesWrittenOut, ROW),
    "a matrix of its own by name": (Mixes, MixesApart, ROW),
}


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    assert answers_alike(*STYLES[style])
