"""How people who publish faster programs keep weights: plain tensors that are drawn like a layer's.

Styles of PIKE's best published solutions, in programs of our own.
"""

import importlib
import math

import pytest

torch = pytest.importorskip("torch")
from builders.given_weights import IMAGE, ROW, C, Line, Post, Pre, constructed, drawn, folded  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = [pytest.mark.torch]


def drawn_matrix(rows=C, columns=C):
    """As `nn.Linear` draws its weight."""
    matrix = torch.empty(rows, columns)
    return nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))


class FoldsPlainKernel(nn.Module):
    """A convolution's weight of its own; nothing of it is left but what was made of it."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.kernel = nn.Parameter(torch.empty(C, C, 1, 1))
        nn.init.kaiming_uniform_(self.kernel, a=math.sqrt(5))
        gain, shift = folded(self.bn)
        self.register_buffer("gain", gain.view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", shift.view(-1, 1, 1), persistent=False)
        self.register_buffer("matrix", self.kernel.detach()[:, :, 0, 0].t().contiguous())
        del self.bn, self.kernel

    def forward(self, x):
        x = torch.relu(x * self.gain + self.shift)
        return torch.einsum("bchw,cd->bdhw", x, self.matrix)


class KeepsPlainKernel(nn.Module):
    """The weight stays a parameter, and forward uses what was made of it."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.kernel = nn.Parameter(torch.empty(C, C, 1, 1))
        nn.init.kaiming_uniform_(self.kernel.data, a=math.sqrt(5))
        self.matrix = self.kernel.detach()[:, :, 0, 0].t().contiguous()

    def forward(self, x):
        return torch.einsum("bchw,cd->bdhw", torch.relu(self.bn(x)), self.matrix)


class FoldsPlainKernelInPlace(nn.Module):
    """What it drew and changed afterwards is made of the weights, and has no place."""

    def __init__(self):
        super().__init__()
        kernel = torch.empty(C, C, 1, 1)
        nn.init.kaiming_normal_(kernel)
        gain, shift = folded(nn.BatchNorm2d(C))
        self.kernel = nn.Parameter(kernel)
        self.kernel.data.mul_(gain.view(-1, 1, 1, 1))
        self.shift = nn.Parameter(shift)

    def forward(self, x):
        return F.conv2d(x, self.kernel, self.shift)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(C, C, 2)

    def forward(self, x):
        return self.rnn(x)[0]


def stacked(x, of):
    """Two layers of `nn.GRU` made of `of(kind, part, layer)`; matrices are transposed."""
    for layer in range(2):
        h, rows = torch.zeros(C), []
        for row in x:
            a = row @ of("weight", "ih", layer) + of("bias", "ih", layer)
            b = h @ of("weight", "hh", layer) + of("bias", "hh", layer)
            r, z = torch.sigmoid((a + b)[: 2 * C]).chunk(2)
            h = (1 - z) * torch.tanh(a[2 * C :] + r * b[2 * C :]) + z * h
            rows.append(h)
        x = torch.stack(rows)
    return x


class PlainRecurrent(nn.Module):
    """All four matrices have one shape; transposed copies are what counts."""

    def __init__(self):
        super().__init__()
        for layer in range(2):
            for part in ("ih", "hh"):
                setattr(self, f"weight_{part}_{layer}", nn.Parameter(torch.empty(3 * C, C)))
            for part in ("ih", "hh"):
                setattr(self, f"bias_{part}_{layer}", nn.Parameter(torch.empty(3 * C)))
        for parameter in self.parameters():
            nn.init.uniform_(parameter.data, -0.3, 0.3)
        for layer in range(2):
            for part in ("ih", "hh"):
                matrix = getattr(self, f"weight_{part}_{layer}").detach()
                self.register_buffer(f"turned_weight_{part}_{layer}", matrix.t().contiguous())

    def forward(self, x):
        def of(kind, part, layer):
            return getattr(self, f"{'turned_' if kind == 'weight' else ''}{kind}_{part}_{layer}")

        return stacked(x, of)


class NamesItsOwn(nn.Module):
    """The last parts of its names are right, and it draws in another order."""

    def __init__(self):
        super().__init__()
        for layer in range(2):
            for part in ("ih", "hh"):
                setattr(self, f"weight_{part}_l{layer}", nn.Parameter(torch.empty(3 * C, C)))
                setattr(self, f"bias_{part}_l{layer}", nn.Parameter(torch.empty(3 * C)))
        for parameter in reversed(list(self.parameters())):
            nn.init.uniform_(parameter, -0.3, 0.3)

    def forward(self, x):
        return stacked(x, lambda *of: getattr(self, "{}_{}_l{}".format(*of)).t())


class SplitRecurrent(nn.Module):
    """All layers but the last in torch's module; the last one's numbers under names of its own."""

    def __init__(self):
        super().__init__()
        self.first, last = nn.GRU(C, C, 1), nn.GRU(C, C, 1)
        self.last_ih, self.last_hh = (
            nn.Parameter(w.clone()) for w in (last.weight_ih_l0, last.weight_hh_l0)
        )
        self.last_a, self.last_b = (
            nn.Parameter(b.clone()) for b in (last.bias_ih_l0, last.bias_hh_l0)
        )

    def forward(self, x):
        x, _ = self.first(x)
        own = [self.last_ih, self.last_hh, self.last_a, self.last_b]
        return torch.gru(x[:, None], torch.zeros(1, 1, C), own, True, 1, 0.0, False, False, False)[
            0
        ][:, 0]


class OtherMemory(nn.Module):
    """Renamed, in float64 and back, and with channels last: no layer has the memory it had."""

    def __init__(self):
        super().__init__()
        self.scaled, self.mixed = nn.BatchNorm2d(C), nn.Conv2d(C, C, 1, bias=False)
        self.to(memory_format=torch.channels_last).double().float()

    def forward(self, x):
        return self.mixed(torch.relu(self.scaled(x)))


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(C, C, bias=False) for _ in range(3))

    def forward(self, x):
        return self.v(torch.tanh(self.k(torch.sin(self.q(x)))))


class TurnedCopies(nn.Module):
    """Transposed parameters under names of their own: squares, which fit untransposed too."""

    def __init__(self):
        super().__init__()
        self.turned = nn.ParameterList(nn.Parameter(drawn_matrix().t().clone()) for _ in range(3))

    def forward(self, x):
        q, k, v = self.turned
        return torch.tanh(torch.sin(x @ q) @ k) @ v


class DrawsATable(nn.Module):
    """Something of its own is drawn first; torch's layers get what they always get."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unused", drawn_matrix(), persistent=False)
        weights = [nn.Linear(C, C, bias=False).weight.detach() for _ in range(3)]
        self.register_buffer("all_of_them", torch.cat(weights))

    def forward(self, x):
        q, k, v = self.all_of_them.chunk(3)
        return F.linear(torch.tanh(F.linear(torch.sin(F.linear(x, q)), k)), v)


class DrawsBesideALayer(nn.Module):
    """A layer of another kind has a weight of the same shape, and draws it in between."""

    def __init__(self):
        super().__init__()
        first = drawn_matrix()
        nn.Linear(C, C)
        weights = [first, drawn_matrix(), drawn_matrix()]
        self.register_buffer("all_of_them", torch.cat(weights))

    forward = DrawsATable.forward


class DrawsInAnotherOrder(nn.Module):
    """Its names are right, and say more than the order in which it draws."""

    def __init__(self):
        super().__init__()
        empty = {name: nn.Parameter(torch.empty(C, C)) for name in "qkv"}
        for name in "vkq":
            nn.init.xavier_uniform_(empty[name])
        for name in "qkv":
            layer = nn.Module()
            layer.weight = empty[name]
            setattr(self, name, layer)

    def forward(self, x):
        x = torch.sin(F.linear(x, self.q.weight))
        return F.linear(torch.tanh(F.linear(x, self.k.weight)), self.v.weight)


class DrawsAndScales(DrawsInAnotherOrder):
    """What it drew is smaller by the time it is named."""

    def __init__(self):
        super().__init__()
        for parameter in self.parameters():
            parameter.data.mul_(0.1)


class HasAWorkspace(Pre):
    """Zeros of a weight's shape, and a drawn part of something larger."""

    def __init__(self):
        zeros = nn.init.zeros_(torch.empty(C, C, 1, 1))
        part = nn.init.uniform_(torch.empty(2, C, C, 1, 1)[0], 2.0, 3.0)
        super().__init__()
        self.zeros, self.part = zeros, part


def of_no_seed(reference):
    """As `drawn`, of weights that no seed makes."""
    model, weights, hands = drawn(reference)
    for weight, tensor in zip(weights, model.state_dict().values(), strict=True):
        if weight.dim() > 1:
            tensor.copy_(weight.mul_(0.9).add_(0.2 * torch.rand_like(weight)))
    return model, weights, hands


def same_as(reference, program, rows=ROW):
    """Its placement, once it was seen to answer as the reference with the judge's weights does."""
    model, weights, hands = of_no_seed(reference)
    given, placement = constructed(program, hands, weights)
    x = torch.randn(rows)
    with torch.no_grad():
        assert torch.allclose(model(x), given(x), atol=1e-5), (model(x) - given(x)).abs().max()
    return placement


@pytest.mark.parametrize(
    ("reference", "program", "rows"),
    [
        (Pre, FoldsPlainKernel, IMAGE),
        (Post, FoldsPlainKernelInPlace, IMAGE),
        (Three, TurnedCopies, ROW),
        (Three, DrawsATable, ROW),
        (Three, DrawsBesideALayer, ROW),
    ],
)
def test_what_is_made_of_drawn_tensors_is_made_of_the_weights(reference, program, rows):
    assert not same_as(reference, program, rows).lasting


@pytest.mark.parametrize(
    ("reference", "program", "rows"),
    [(Pre, KeepsPlainKernel, IMAGE), (Recurrent, PlainRecurrent, ROW)],
)
def test_drawn_tensors_that_are_kept_have_places_beside_what_is_made_of_them(
    reference, program, rows
):
    placement = same_as(reference, program, rows)
    names = {name for name in placement.slots if "weight" in name or "kernel" in name}
    assert names >= {
        n for n, _ in program().named_parameters() if "bias" not in n and "bn" not in n
    }


@pytest.mark.parametrize(
    ("reference", "program", "rows"),
    [(Recurrent, SplitRecurrent, ROW), (Pre, OtherMemory, IMAGE)],
)
def test_layers_that_are_split_or_moved_have_places(reference, program, rows):
    assert same_as(reference, program, rows).lasting


def test_last_names_say_more_than_the_order_of_drawing():
    assert same_as(Recurrent, NamesItsOwn).lasting


class Keyed(nn.Module):
    """Attention over rows, its keys with a bias or, since softmax takes that off, without."""

    keys_have_a_bias = True

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(C, C), nn.Linear(C, C, bias=self.keys_have_a_bias)
        self.v = nn.Linear(C, C)

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)


class KeyedWithoutTheirBias(Keyed):
    keys_have_a_bias = False


def test_a_bias_that_is_left_out_is_no_sign_of_what_was_made_of_it():
    assert same_as(Keyed, KeyedWithoutTheirBias, ROW).lasting


@pytest.mark.parametrize("program", [DrawsInAnotherOrder, DrawsAndScales])
def test_names_say_more_than_the_order_of_drawing(program):
    assert same_as(Three, program).by_name


def test_only_whole_tensors_that_are_drawn_are_taken_for_weights():
    _, weights, hands = drawn(Pre)
    given, placement = constructed(HasAWorkspace, hands, weights)
    assert placement.by_name
    assert given.zeros.abs().max() == 0
    assert given.part.min() >= 2.0


def test_a_parameter_of_no_layer_is_given_to_nobody():
    """Else a reference that draws its own and changes it would be another model."""
    _, weights, hands = drawn(Line)
    hand = hands(weights)
    with hand.giving():
        own = nn.init.uniform_(torch.empty(C), 5.0, 6.0)
        layer_like = nn.init.uniform_(torch.empty(C), 5.0, 6.0)
    assert torch.equal(own, weights[2]), "the bias of its layer"
    assert layer_like.min() >= 5.0, "its own is nobody's"


def test_the_library_that_published_programs_import_is_where_programs_run():
    """PIKE's references 48 and 49 import it, and all that was published for them."""
    einops = importlib.import_module("einops")
    assert einops.rearrange(torch.ones(2, 6), "b (c l) -> b c l", l=3).shape == (2, 2, 3)
