"""Layers of torch under other names, and made in another order, take the judge's weights."""

import pytest

torch = pytest.importorskip("torch")
from builders.given_weights import IMAGE, C, Post, answers_alike, kept  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch]


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


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C)
        self.conv2, self.bn2 = nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C)
        self.shortcut = nn.Sequential(nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C))

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(h)) + self.shortcut(x)


class Walled(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


class WithoutWalls(nn.Module):
    """Its shortcut is made first and has a name of its own, the others say what they are."""

    def __init__(self):
        super().__init__()
        self.way, self.way_norm = nn.Conv2d(C, C, 1, bias=False), nn.BatchNorm2d(C)
        self.conv1, self.conv2 = (nn.Conv2d(C, C, 1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(C), nn.BatchNorm2d(C)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(h)) + self.way_norm(self.way(x))


class WithAnotherWall(nn.Module):
    """The same names behind one of its own, made in another order."""

    def __init__(self):
        super().__init__()
        self.net = made = nn.Module()
        made.bn2, made.bn1, made.way_norm = (nn.BatchNorm2d(C) for _ in range(3))
        made.conv2, made.conv1, made.way = (nn.Conv2d(C, C, 1, bias=False) for _ in range(3))

    def forward(self, x):
        return WithoutWalls.forward(self.net, x)


class Stem(nn.Module):
    """A convolution of the same size before the block, under a name without a number."""

    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Conv2d(C, C, 1, bias=False), nn.Module()
        self.block.conv1 = nn.Conv2d(C, C, 1, bias=False)
        self.block.conv2 = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        return self.block.conv2(torch.relu(self.block.conv1(torch.relu(self.first(x)))))


class CountsOn(nn.Module):
    """The same, with numbers from the first on."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(C, C, 1, bias=False) for _ in range(3))

    def forward(self, x):
        return self.conv3(torch.relu(self.conv2(torch.relu(self.conv1(x)))))


class Nested(nn.Module):
    """Two stages with a norm each, and one of that name behind them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Post(), Post()
        self.bn = nn.BatchNorm2d(C)

    def forward(self, x):
        return self.bn(torch.relu(self.two(torch.relu(self.one(x)))))


class NestedDeeper(nn.Module):
    """The same behind a wall, the last first."""

    def __init__(self):
        super().__init__()
        self.net = made = nn.Module()
        made.bn, made.two, made.one = nn.BatchNorm2d(C), Post(), Post()

    def forward(self, x):
        return Nested.forward(self.net, x)


STYLES = {
    "made in another order than kept": (Shortcut, ShortcutRenamed, IMAGE),
    "attention under another name": (Attends, AttendsRenamed, (3, 2, C)),
    "attention in parts": (Attends, AttendsInParts, (3, 2, C)),
    "without walls, in another order": (Walled, WithoutWalls, IMAGE),
    "with another wall": (WithoutWalls, WithAnotherWall, IMAGE),
    "numbered from the stem on": (Stem, CountsOn, IMAGE),
    "parts of one name behind a wall": (Nested, NestedDeeper, IMAGE),
}


@pytest.mark.parametrize("style", STYLES)
def test_it_answers_as_the_reference_does(style):
    assert answers_alike(*STYLES[style])


@pytest.mark.parametrize(
    ("reference", "program"),
    [(Shortcut, ShortcutRenamed), (Attends, AttendsRenamed), (Walled, WithoutWalls)],
)
def test_it_knows_that_it_guessed_and_that_it_will_last(reference, program):
    assert kept(reference, program) == (False, True)
