"""Weights find their places in programs that are built otherwise than the reference."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.init import kaiming_normal_  # noqa: E402

from pike_hpc.evaluate.runner import (  # noqa: E402
    Hands,
    layers_made,
    slots_of,
    unwritten,
    watching,
)

pytestmark = [pytest.mark.torch]

C = 8
IMAGE, ROW = (2, C, 4, 4), (3, C)


class Pre(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.conv = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        return self.conv(torch.relu(self.bn(x)))


def folded(bn):
    gain = bn.weight.detach() / torch.sqrt(bn.running_var + bn.eps)
    return gain, bn.bias.detach() - bn.running_mean * gain


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


class Post(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.bn = nn.BatchNorm2d(C)
        for parameter in self.conv.parameters():
            nn.init.kaiming_normal_(parameter)

    def forward(self, x):
        return self.bn(self.conv(x))


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


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)
        self.scale = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return self.fc(x) * self.scale


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


class Shortcut(nn.Module):
    """Made in another order than it is kept: two convolutions of one shape."""

    def __init__(self):
        super().__init__()
        shortcut = nn.Conv2d(C, C, 1)
        self.main = nn.Conv2d(C, C, 1)
        self.shortcut = shortcut

    def forward(self, x):
        return torch.relu(self.main(x)) + self.shortcut(x)


class ShortcutRenamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(C, C, 1)
        self.b = nn.Conv2d(C, C, 1)

    def forward(self, x):
        return torch.relu(self.b(x)) + self.a(x)


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


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class AttendsRenamed(nn.Module):
    """Its bias is set to zero by torch's own constructor, past torch.nn.init."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(C, 2)

    def forward(self, x):
        return self.mix(x, x, x)[0]


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


class AttendsInParts(nn.Module):
    """An attention of torch's taken apart by the constructor."""

    def __init__(self):
        super().__init__()
        made = nn.MultiheadAttention(C, 2)
        self.w, self.b = (
            nn.Parameter(p.detach().clone()) for p in (made.in_proj_weight, made.in_proj_bias)
        )
        self.o = nn.Parameter(made.out_proj.weight.detach().clone())
        self.c = nn.Parameter(made.out_proj.bias.detach().clone())

    def forward(self, x):
        return nn.functional.multi_head_attention_forward(
            x, x, x, C, 2, self.w, self.b, None, None, False, 0.0, self.o, self.c, training=False
        )[0]


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


STYLES = {
    "the reference itself": (Pre, Pre, IMAGE),
    "folded into buffers": (Pre, FoldsIntoBuffers, IMAGE),
    "folded into attributes": (Pre, FoldsIntoAttributes, IMAGE),
    "folded by the first call": (Pre, FoldsLater, IMAGE),
    "a norm without its counter": (Pre, NoCounter, IMAGE),
    "folded in place": (Post, FoldsIntoItsConvolution, IMAGE),
    "fused, without the mask": (Masked, Fused, ROW),
    "transposed": (Line, Transposed, ROW),
    "made in another order than kept": (Shortcut, ShortcutRenamed, IMAGE),
    "a layer that the reference resets again": (Resets, ResetsNothing, ROW),
    "folded into a new tensor": (Post, FoldsUnderItsName, IMAGE),
    "folded under the reference's names": (Post, FoldsUnderEveryName, IMAGE),
    "drawn again": (Post, DrawsAgain, IMAGE),
    "never filled": (Post, WritesNothing, IMAGE),
    "with a buffer of its own": (Post, KeepsScratch, IMAGE),
    "attention under another name": (Attends, AttendsRenamed, (3, 2, C)),
    "attention in parts": (Attends, AttendsInParts, (3, 2, C)),
    "cast layer by layer": (Pre, CastsEachLayer, IMAGE),
    "statistics under other names": (Pre, NamesStatistics, IMAGE),
    "blocks with two names": (Scales, ScalesTwice, ROW),
    "folded, of the shape of another": (Line, KeepsWhatItMade, ROW),
    "tied": (Tied, TiedRenamed, ROW),
}


def drawn(reference):
    """A model with weights that no constructor makes, these, and what makes hands of weights."""
    made = []
    with watching(made.append):
        torch.manual_seed(1)
        model = reference().eval()
    layers = layers_made(model, made)
    with torch.no_grad():
        for tensor in model.state_dict(keep_vars=True).values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(torch.rand_like(tensor))
    state = model.state_dict(keep_vars=True)
    parameters = [i for i, t in enumerate(state.values()) if isinstance(t, nn.Parameter)]
    weights = [t.detach().clone() for t in state.values()]
    names = list(state)
    indexed = [(kind, [names.index(n) for n in own]) for kind, own in layers]

    def hands(weights):
        return Hands(slots_of(names, weights, parameters), indexed, weights)

    return model, weights, hands


def constructed(program, hands, weights, twins=1):
    """The program with its weights where they go, as a runner makes it with room for `twins`."""
    room = iter(range(twins))

    def made(weights):
        hand = hands(weights)
        with hand.giving():
            torch.manual_seed(1)
            return hand, program()

    def twin():
        if next(room, None) is None:
            return None
        with unwritten():
            return made([w + 1 for w in weights])[1].state_dict(keep_vars=True)

    hand, model = made(weights)
    own = model.state_dict(keep_vars=True)
    placement = hand.place(own, twin)
    if placement is not None:
        found = {name: weights[i] for name, i in placement.slots.items()}
        state = model.state_dict()
        state.update(found)
        model.load_state_dict(state)
    return model.eval(), placement


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    reference, program, shape = STYLES[style]
    truth, weights, hands = drawn(reference)
    model, placement = constructed(program, hands, weights)
    assert placement is not None
    x = torch.randn(shape)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)


@pytest.mark.parametrize(
    ("reference", "program", "by_name", "lasting"),
    [
        (Pre, Pre, True, True),
        (Pre, FoldsIntoAttributes, True, True),
        (Pre, NoCounter, False, True),
        (Pre, FoldsLater, False, True),
        (Pre, FoldsIntoBuffers, False, False),
        (Masked, Fused, False, False),
        (Shortcut, ShortcutRenamed, False, True),
        (Post, FoldsUnderItsName, False, False),
        (Post, FoldsUnderEveryName, False, False),
        (Post, DrawsAgain, False, True),
        (Attends, AttendsRenamed, False, True),
        (Pre, CastsEachLayer, False, False),
        (Pre, NamesStatistics, False, True),
        (Scales, ScalesTwice, False, True),
        (Tied, TiedRenamed, False, True),
    ],
)
def test_it_knows_what_it_guessed_and_what_will_last(reference, program, by_name, lasting):
    _, weights, hands = drawn(reference)
    _, placement = constructed(program, hands, weights)
    assert (placement.by_name, placement.lasting) == (by_name, lasting)


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


def test_a_parameter_of_its_own_beside_an_unused_weight_can_not_be_right():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(C, C + 1))

    _, weights, hands = drawn(Line)
    _, placement = constructed(Draws, hands, weights)
    assert placement is None


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


class Late(nn.Module):
    """The reference's name, and no shape before the first call."""

    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(C)
        self.register_parameter("gain", nn.Parameter(torch.rand(C)))

    def forward(self, x):
        return self.fc(x) * self.gain


def test_a_layer_that_has_no_shape_yet_takes_its_weights_by_name():
    truth, weights, hands = drawn(Line)
    model, placement = constructed(Late, hands, weights)
    assert placement is not None
    x = torch.randn(ROW)
    with torch.inference_mode():
        assert torch.allclose(model(x), truth(x), atol=1e-5)


def test_outside_of_it_torch_is_as_it_was():
    before = nn.Linear.reset_parameters, nn.BatchNorm2d.reset_parameters, nn.init.normal_
    _, weights, hands = drawn(Pre)
    with pytest.raises(RuntimeError), hands(weights).giving():
        raise RuntimeError
    after = nn.Linear.reset_parameters, nn.BatchNorm2d.reset_parameters, nn.init.normal_
    assert before == after
    model = nn.BatchNorm2d(C)
    assert not torch.equal(model.weight, weights[0])
