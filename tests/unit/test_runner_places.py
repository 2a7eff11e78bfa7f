"""Weights find their places in programs whose layers are others, by shape and order."""

import pytest

torch = pytest.importorskip("torch")
from builders.given_weights import (  # noqa: E402
    IMAGE,
    ROW,
    C,
    Line,
    answers_alike,
    constructed,
    drawn,
    kept,
)
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch]


class Scales(nn.Module):
    """Two blocks, each with a parameter that belongs to no layer of torch."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Scaled() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)
        self.scale = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return x + self.scale * self.fc(x)


class ScalesTwice(nn.Module):
    """Each of its blocks has two names."""

    def __init__(self):
        super().__init__()
        made = Scales()
        self.first = made.blocks[0]
        self.body = nn.Sequential(*made.blocks)

    def forward(self, x):
        return self.body(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x):
        return self.out(torch.relu(self.into(x)))


class TiedRenamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Tied()

    def forward(self, x):
        return self.inner(x)


class Late(nn.Module):
    """The reference's name, and no shape before the first call."""

    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(C)
        self.register_parameter("gain", nn.Parameter(torch.rand(C)))

    def forward(self, x):
        return self.fc(x) * self.gain


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(C, 2 * C, 3, padding=1)
        self.deep = nn.Conv2d(2 * C, 2 * C, 3, padding=1, groups=2 * C, bias=False)
        self.norm = nn.BatchNorm2d(2 * C)
        self.head = nn.Conv2d(2 * C, C, 1)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.deep(self.wide(x)))))


class AsMatrices(nn.Module):
    """Convolutions as matrix products, a norm whose tensors are as wide as an image."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.empty(2 * C, 9 * C)), nn.Parameter(torch.zeros(2 * C))
        self.taps = nn.Parameter(torch.empty(2 * C, 3, 3))
        self.scale = nn.Module()
        self.scale.bias = nn.Parameter(torch.zeros(1, 2 * C, 1, 1))
        self.scale.weight = nn.Parameter(torch.ones(1, 2 * C, 1, 1))
        self.register_buffer("norm_mean", torch.zeros(1, 2 * C, 1, 1))
        self.register_buffer("norm_var", torch.ones(1, 2 * C, 1, 1))
        self.v, self.c = nn.Parameter(torch.empty(C, 2 * C)), nn.Parameter(torch.zeros(C))

    def forward(self, x):
        h = self.w @ nn.functional.unfold(x, 3, padding=1) + self.b.unsqueeze(-1)
        h = h.unflatten(-1, x.shape[-2:])
        h = nn.functional.conv2d(h, self.taps.unsqueeze(1), padding=1, groups=2 * C)
        h = (h - self.norm_mean) * torch.rsqrt(self.norm_var + 1e-5)
        h = h * self.scale.weight + self.scale.bias
        y = self.v @ torch.relu(h).flatten(2) + self.c.unsqueeze(-1)
        return y.unflatten(-1, x.shape[-2:])


class AsMatricesOfIts(nn.Module):
    """One that is made of a layer, whose memory it shares, and one under the reference's name."""

    def __init__(self):
        super().__init__()
        wide = nn.Conv2d(C, 2 * C, 3, padding=1)
        self.rows, self.base = nn.Parameter(wide.weight.detach().flatten(1)), wide.bias
        self.deep = nn.Conv2d(2 * C, 2 * C, 3, padding=1, groups=2 * C, bias=False)
        self.norm = nn.BatchNorm2d(2 * C)
        self.head = nn.Module()
        self.head.weight = nn.Parameter(torch.empty(C, 2 * C))
        self.head.bias = nn.Parameter(torch.zeros(C))

    def forward(self, x):
        h = self.rows @ nn.functional.unfold(x, 3, padding=1)
        h = (h + self.base.unsqueeze(-1)).unflatten(-1, x.shape[-2:])
        y = torch.relu(self.norm(self.deep(h))).movedim(1, -1)
        return nn.functional.linear(y, self.head.weight, self.head.bias).movedim(-1, 1)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm((3, C))

    def forward(self, x):
        return self.ln(x)


class AsRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(3 * C)), nn.Parameter(torch.zeros(3 * C))

    def forward(self, x):
        flat = nn.functional.layer_norm(x.flatten(), (3 * C,), self.gain, self.shift)
        return flat.view_as(x)


class Tables(nn.Module):
    """Two blocks with a table each, of which the second is never read."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Tabled(), Tabled()

    def forward(self, x):
        return self.two.fc(self.one.fc(x) + self.one.table)


class Tabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)
        self.register_buffer("table", torch.zeros(C))


class OneTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Tabled(), nn.Linear(C, C)

    def forward(self, x):
        return self.second(self.first.fc(x) + self.first.table)


class Emptied(nn.Module):
    """Layers that are made without memory, or without shape, under names of its own."""

    def __init__(self, shell):
        super().__init__()
        skip, late = nn.utils.skip_init, nn.LazyConv2d
        self.first = late(2 * C, 3, padding=1)
        self.body = nn.Sequential(
            skip(nn.Conv2d, 2 * C, 2 * C, 3, padding=1, groups=2 * C, bias=False),
            nn.LazyBatchNorm2d(),
        )
        with torch.device(shell):
            self.last = nn.Conv2d(2 * C, C, 1)
        self.last = self.last.to_empty(device="cpu")
        if shell == "meta":
            nn.init.normal_(self.last.weight)

    def forward(self, x):
        return self.last(torch.relu(self.body(self.first(x))))


class Shown(Emptied):
    """Its late layers get their shapes from a call in the constructor."""

    def __init__(self):
        super().__init__("meta")
        self.eval()(torch.zeros(IMAGE))


class Copies(nn.Module):
    """Layers that torch makes by copying one: nothing is given while they are constructed."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 2, 2 * C, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


class CopiesNothing(nn.Module):
    """The same by hand, norms first."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(OwnBlock(), OwnBlock())

    def forward(self, x):
        return self.blocks(x)


class OwnBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc1, self.fc2 = nn.Linear(C, 2 * C), nn.Linear(2 * C, C)

    def forward(self, x):
        heads = self.qkv(self.ln1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.fc2(torch.relu(self.fc1(self.ln2(x))))


class Remembers(nn.Module):
    """Two layers, which torch lists one after the other."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(C, C, num_layers=2)

    def forward(self, x):
        return self.rnn(x)[0]


class RemembersInLists(nn.Module):
    """The same with parameters of its own, listed by what they are."""

    def __init__(self):
        super().__init__()
        for kind, shape in (("w_ih", (4 * C, C)), ("w_hh", (4 * C, C))):
            made = nn.ParameterList(nn.Parameter(torch.rand(shape)) for _ in range(2))
            self.register_module(kind, made)
        for kind in ("b_ih", "b_hh"):
            made = nn.ParameterList(nn.Parameter(torch.rand(4 * C)) for _ in range(2))
            self.register_module(kind, made)

    def forward(self, x):
        flat = [
            w for own in zip(self.w_ih, self.w_hh, self.b_ih, self.b_hh, strict=True) for w in own
        ]
        state = [torch.zeros(2, x.shape[1], C)] * 2
        return torch.lstm(x, state, flat, True, 2, 0.0, False, False, False)[0]


class Blocks(nn.Module):
    """Norms in blocks, and one behind them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(C, bias=False), nn.Linear(C, C)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(C, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x)


class GainAtTheRoot(nn.Module):
    """The same with plain gains, of which the last comes first in its state_dict."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            layer.ln1_w, layer.linear = nn.Parameter(torch.ones(C)), nn.Linear(C, C)
            self.layers.append(layer)
        self.lnf_w = nn.Parameter(torch.ones(C))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer.linear(nn.functional.layer_norm(x, (C,), layer.ln1_w))
        return nn.functional.layer_norm(x, (C,), self.lnf_w)


class GainsThatFollow(GainAtTheRoot):
    """The first gain at the root, and in each block that of the norm behind it."""

    def __init__(self):
        nn.Module.__init__(self)
        self.norm_w = nn.Parameter(torch.ones(C))
        self.layers = nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            layer.linear, layer.next_norm_w = nn.Linear(C, C), nn.Parameter(torch.ones(C))
            self.layers.append(layer)

    def forward(self, x):
        gain = self.norm_w
        for layer in self.layers:
            x = x + layer.linear(nn.functional.layer_norm(x, (C,), gain))
            gain = layer.next_norm_w
        return nn.functional.layer_norm(x, (C,), gain)


STYLES = {
    "a gain before its blocks": (Blocks, GainsThatFollow, ROW),
    "a gain behind its blocks": (Blocks, GainAtTheRoot, ROW),
    "layers that torch copies, by hand": (Copies, CopiesNothing, (2, 3, C)),
    "recurrent layers in lists": (Remembers, RemembersInLists, (5, 1, C)),
    "blocks with two names": (Scales, ScalesTwice, ROW),
    "tied": (Tied, TiedRenamed, ROW),
    "convolutions as matrices": (Deep, AsMatrices, IMAGE),
    "matrices that share memory or name": (Deep, AsMatricesOfIts, IMAGE),
    "a buffer that it doesn't need twice": (Tables, OneTable, ROW),
    "a table as a row": (Table, AsRows, ROW),
    "made without memory or shape": (Deep, lambda: Emptied("cpu"), IMAGE),
    "shown an input": (Deep, Shown, IMAGE),
}


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    assert answers_alike(*STYLES[style])


@pytest.mark.parametrize(
    ("reference", "program", "by_name", "lasting"),
    [
        (Scales, ScalesTwice, False, True),
        (Tied, TiedRenamed, False, True),
        (Deep, AsMatrices, False, True),
        (Deep, AsMatricesOfIts, False, True),
        (Deep, Shown, False, True),
    ],
)
def test_it_knows_what_it_guessed_and_what_will_last(reference, program, by_name, lasting):
    assert kept(reference, program) == (by_name, lasting)


def test_a_parameter_of_its_own_beside_an_unused_weight_can_not_be_right():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(C, C + 1))

    _, weights, hands = drawn(Line)
    _, placement = constructed(Draws, hands, weights)
    assert placement is None


def test_a_layer_that_has_no_shape_yet_takes_its_weights_by_name():
    truth, weights, hands = drawn(Line)
    model, placement = constructed(Late, hands, weights)
    assert placement is not None
    x = torch.randn(ROW)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)


def test_matrices_of_which_there_are_too_few_or_too_many_have_no_place():
    class Draws(nn.Module):
        def __init__(self, *shapes):
            super().__init__()
            self.w = nn.ParameterList(torch.randn(shape) for shape in shapes)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Conv2d(C, C, 3, bias=False) for _ in range(2))

    _, weights, hands = drawn(Twice)
    for shapes in ([(C, 9 * C)], [(C, 9 * C)] * 3):
        assert constructed(lambda s=shapes: Draws(*s), hands, weights)[1] is None
    _, placement = constructed(lambda: Draws((C, 9 * C), (C, C, 9)), hands, weights)
    assert placement.slots == {"w.0": 0, "w.1": 1}


def test_layers_without_memory_take_their_weights_without_room_for_a_second_program():
    truth, weights, hands = drawn(Deep)
    model, placement = constructed(lambda: Emptied("meta"), hands, weights, twins=0)
    assert placement is not None
    x = torch.randn(IMAGE)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)
