"""What a constructor makes of torch's layers is made of the judge's weights."""

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
    constructed,
    drawn,
    folded,
    kept,
)
from torch import nn  # noqa: E402
from torch.nn.init import kaiming_normal_  # noqa: E402

pytestmark = [pytest.mark.torch]


class FoldsIntoBuffers(nn.Module):
    """Its norm is gone when the constructor ends."""

    def __init__(self):
        super().__init__()
        gain, shift = folded(nn.BatchNorm2d(C))
        self.register_buffer("gain", gain)
        self.register_buffer("shift", shift)
        self.conv = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        return self.conv(torch.relu(x * self.gain.view(-1, 1, 1) + self.shift.view(-1, 1, 1)))


class FoldsIntoAttributes(nn.Module):
    """Every name is the reference's."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.gain, self.shift = folded(self.bn)

    def forward(self, x):
        return self.conv(torch.relu(x * self.gain.view(-1, 1, 1) + self.shift.view(-1, 1, 1)))


class FoldsLater(nn.Module):
    """Buffers of its own that the first call fills."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.register_buffer("gain", torch.empty(C))
        self.register_buffer("shift", torch.empty(C))

    def forward(self, x):
        gain, shift = folded(self.bn)
        self.gain.copy_(gain)
        self.shift.copy_(shift)
        return self.conv(torch.relu(x * self.gain.view(-1, 1, 1) + self.shift.view(-1, 1, 1)))


class FoldsIntoItsConvolution(nn.Module):
    """The norm's gain is multiplied into the convolution, in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        gain, shift = folded(nn.BatchNorm2d(C))
        self.conv.weight.data.mul_(gain.view(-1, 1, 1, 1))
        self.shift = nn.Parameter(shift)

    def forward(self, x):
        return self.conv(x) + self.shift.view(-1, 1, 1)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(C)
        self.q, self.k, self.v = (nn.Linear(C, C) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)))

    def forward(self, x):
        x = self.norm(x)
        scores = (self.q(x) @ self.k(x).T).masked_fill(self.mask == 0, float("-inf"))
        return scores.softmax(-1) @ self.v(x)


class Fused(nn.Module):
    """Three products in one, transposed; no mask is kept."""

    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(C)
        parts = [nn.Linear(C, C) for _ in range(3)]
        self.w = nn.Parameter(torch.cat([p.weight.detach() for p in parts]).t().contiguous())
        self.b = nn.Parameter(torch.cat([p.bias.detach() for p in parts]))

    def forward(self, x):
        q, k, v = (self.ln(x) @ self.w + self.b).chunk(3, dim=-1)
        hidden = torch.ones(3, 3).triu(1).bool()
        return (q @ k.T).masked_fill(hidden, float("-inf")).softmax(-1) @ v


class Transposed(nn.Module):
    """Square, kept transposed under a name of its own; the bias shares memory with the layer's."""

    def __init__(self):
        super().__init__()
        fc = nn.Linear(C, C)
        self.turned = nn.Parameter(fc.weight.detach().t().contiguous())
        self.b = nn.Parameter(fc.bias)
        self.gain = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return (x @ self.turned + self.b) * self.gain


class Resets(nn.Module):
    """Its layer is initialised twice, as many constructors do."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)
        self.fc.reset_parameters()
        self.out = nn.Linear(C, C)

    def forward(self, x):
        return self.out(torch.relu(self.fc(x)))


class ResetsNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class FoldsUnderItsName(nn.Module):
    """As above, in a new tensor that has the reference's name."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        gain, shift = folded(nn.BatchNorm2d(C))
        self.conv.weight = nn.Parameter(self.conv.weight.detach() * gain.view(-1, 1, 1, 1))
        self.register_buffer("shift", shift)

    def forward(self, x):
        return self.conv(x) + self.shift.view(-1, 1, 1)


class FoldsUnderEveryName(nn.Module):
    """Its norm stays, unused: nothing is missing from its state_dict, and nothing is besides."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.bn = nn.BatchNorm2d(C)
        gain, shift = folded(self.bn)
        self.conv.weight.data.mul_(gain.view(-1, 1, 1, 1))
        self.shift = shift

    def forward(self, x):
        return self.conv(x) + self.shift.view(-1, 1, 1)


class WarmsUp(Post):
    """Calls itself while it is constructed, in training: its norm's statistics move."""

    def __init__(self):
        super().__init__()
        for _ in range(3):
            self(torch.randn(IMAGE))


class WarmsUpRenamed(nn.Module):
    """The same to see a shape, under names of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C))
        self.channels = self.layers(torch.ones(IMAGE)).shape[1]

    def forward(self, x):
        return self.layers(x)


class DrawsAgain(nn.Module):
    """A renamed layer whose weights its constructor draws anew, past torch.nn.init."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(C, C, 1, bias=False)
        self.first.weight.data.normal_(0.0, 0.1)
        self.second = nn.BatchNorm2d(C)
        kaiming_normal_(self.first.weight)

    def forward(self, x):
        return self.second(self.first(x))


class WritesNothing(nn.Module):
    """The reference's names, in memory that no constructor filled."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.conv = nn.Module()
        self.conv.weight = nn.Parameter(torch.empty(C, C, 1, 1))

    def forward(self, x):
        return self.bn(nn.functional.conv2d(x, self.conv.weight))


class Packed(nn.Module):
    """Made of a layer, in a form that is no tensor in its state_dict, as quantized ones are."""

    def __init__(self):
        super().__init__()
        fc = nn.Linear(C, C)
        self.packed = fc.weight.detach().clone(), fc.bias.detach().clone()
        self.scale = nn.Parameter(torch.ones(C))

    def get_extra_state(self):
        return self.packed

    def set_extra_state(self, packed):
        self.packed = packed

    def forward(self, x):
        return nn.functional.linear(x, *self.packed) * self.scale


class CastsEachLayer(nn.Module):
    """As soon as it is made: the memory that it was made in is free for the next one."""

    def __init__(self):
        super().__init__()
        self.one = nn.BatchNorm2d(C).double()
        self.two = nn.Conv2d(C, C, 1, bias=False).double()

    def forward(self, x):
        return self.two(torch.relu(self.one(x.double()))).float()


class KeepsWhatItMade(nn.Module):
    """A folded parameter of the shape of one that has a place."""

    def __init__(self):
        super().__init__()
        fc = nn.Linear(C, C)
        self.bias = nn.Parameter(fc.bias.detach() * 2)
        self.w = nn.Parameter(fc.weight.detach().clone())
        self.gain = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return (x @ self.w.t() + self.bias / 2) * self.gain


class Clones(nn.Module):
    """What layers have is kept in copies, one in the shape of a matrix."""

    def __init__(self):
        super().__init__()
        conv, norm = nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C)
        nn.init.kaiming_normal_(conv.weight)
        self.shift = nn.Parameter(norm.bias.detach().clone())
        self.gain = nn.Parameter(norm.weight.detach().clone())
        self.rows = nn.Parameter(conv.weight.detach().flatten(1).clone())
        self.register_buffer("the_mean", norm.running_mean.clone())
        self.register_buffer("the_var", norm.running_var.clone())

    def forward(self, x):
        norm = self.the_mean, self.the_var, self.gain, self.shift
        return nn.functional.batch_norm(nn.functional.conv2d(x, self.rows[..., None, None]), *norm)


STYLES = {
    "the reference itself": (Pre, Pre, IMAGE),
    "folded into buffers": (Pre, FoldsIntoBuffers, IMAGE),
    "folded into attributes": (Pre, FoldsIntoAttributes, IMAGE),
    "folded by the first call": (Pre, FoldsLater, IMAGE),
    "folded in place": (Post, FoldsIntoItsConvolution, IMAGE),
    "fused, without the mask": (Masked, Fused, ROW),
    "transposed": (Line, Transposed, ROW),
    "a layer that the reference resets again": (Resets, ResetsNothing, ROW),
    "folded into a new tensor": (Post, FoldsUnderItsName, IMAGE),
    "folded under the reference's names": (Post, FoldsUnderEveryName, IMAGE),
    "called by its constructor": (Post, WarmsUp, IMAGE),
    "called by its constructor, renamed": (Post, WarmsUpRenamed, IMAGE),
    "drawn again": (Post, DrawsAgain, IMAGE),
    "never filled": (Post, WritesNothing, IMAGE),
    "cast layer by layer": (Pre, CastsEachLayer, IMAGE),
    "cloned": (Post, Clones, IMAGE),
    "folded, of the shape of another": (Line, KeepsWhatItMade, ROW),
}


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    assert answers_alike(*STYLES[style])


@pytest.mark.parametrize(
    ("reference", "program", "by_name", "lasting"),
    [
        (Pre, Pre, True, True),
        (Pre, FoldsIntoAttributes, True, True),
        (Pre, FoldsLater, False, True),
        (Pre, FoldsIntoBuffers, False, False),
        (Masked, Fused, False, False),
        (Post, FoldsUnderItsName, False, False),
        (Post, FoldsUnderEveryName, False, False),
        (Post, WarmsUp, True, True),
        (Post, WarmsUpRenamed, False, True),
        (Post, DrawsAgain, False, True),
        (Pre, CastsEachLayer, False, True),
        (Post, Clones, False, True),
    ],
)
def test_it_knows_what_it_guessed_and_what_will_last(reference, program, by_name, lasting):
    assert kept(reference, program) == (by_name, lasting)


def test_without_room_for_a_second_one_what_was_changed_in_place_is_left_alone():
    truth, weights, hands = drawn(Post)
    model, placement = constructed(FoldsIntoItsConvolution, hands, weights, twins=0)
    x = torch.randn(IMAGE)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)
    _, placement = constructed(Post, hands, weights, twins=0)
    assert placement.by_name


def test_who_changes_nothing_is_constructed_once():
    _, weights, hands = drawn(Pre)
    room = iter(range(1))
    for program in (Pre, FoldsIntoAttributes, FoldsIntoBuffers):
        hand = hands(weights)
        with hand.giving():
            model = program()
        hand.place(model.state_dict(keep_vars=True), lambda: next(room))
    assert next(room) == 0


def test_what_is_no_tensor_in_a_state_dict_is_let_be():
    truth, weights, hands = drawn(Line)
    model, placement = constructed(Packed, hands, weights)
    assert (set(placement.slots), placement.lasting) == ({"scale"}, False)
    x = torch.randn(ROW)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)


def test_random_numbers_are_drawn_as_without_hands():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(C, C)
            nn.init.xavier_uniform_(self.fc.weight)
            self.scale = nn.Parameter(torch.rand(C))

    torch.manual_seed(1)
    plain = Draws().scale
    _, weights, hands = drawn(Line)
    with hands(weights).giving():
        torch.manual_seed(1)
        given = Draws()
    assert torch.equal(given.scale, plain)
    assert torch.equal(given.fc.weight, weights[1])


def test_outside_of_it_torch_is_as_it_was():
    before = nn.Linear.reset_parameters, nn.BatchNorm2d.reset_parameters, nn.init.normal_
    _, weights, hands = drawn(Pre)
    with pytest.raises(RuntimeError), hands(weights).giving():
        raise RuntimeError
    after = nn.Linear.reset_parameters, nn.BatchNorm2d.reset_parameters, nn.init.normal_
    assert before == after
    model = nn.BatchNorm2d(C)
    assert not torch.equal(model.weight, weights[0])
