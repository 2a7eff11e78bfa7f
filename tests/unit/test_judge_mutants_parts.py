"""Parts of blocks: which there are, and that all of one path are left out together."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_mutants_parts import MOST_PARTS, part_edits  # noqa: E402

pytestmark = pytest.mark.torch


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.full((8,), 0.5))
        self.mix, self.act = nn.Linear(8, 8), nn.ReLU()
        self.mlp = Mlp()
        self.unused = nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.gain * self.mix(x)
        return x + self.mlp(self.act(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last, self.head = Block(), nn.Linear(8, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def edits_of(model, *inputs):
    return part_edits(model, lambda: model(*inputs))


def test_parts_are_modules_with_weights_right_inside_of_blocks_that_a_call_uses():
    edits = edits_of(Net().eval(), torch.randn(2, 8))
    assert list(edits) == ["blocks.*.mix = 0", "blocks.*.mlp = 0", "last.mix = 0", "last.mlp = 0"]


def test_a_part_is_left_out_of_all_blocks_and_comes_back():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 8)
    before, h = model(x), x
    with edits_of(model, x)["blocks.*.mlp = 0"]():
        without = model(x)
    for block in model.blocks:
        h = h + block.gain * block.mix(h)
    assert torch.equal(without, model.head(model.last(h)))
    assert torch.equal(model(x), before)


class Router(nn.Module):
    def __init__(self, *experts):
        super().__init__()
        self.scale, self.experts = nn.Parameter(torch.ones(4)), nn.ModuleList(experts)

    def forward(self, x):
        return self.scale * torch.stack([expert(x) for expert in self.experts]).sum(0)


@pytest.mark.parametrize(
    ("experts", "names"),
    [
        ([nn.Linear(4, 4), nn.Linear(4, 4)], ["0.experts.* = 0"]),
        (
            [nn.Linear(4, 4), nn.Linear(4, 4, bias=False)],
            ["0.experts.0 = 0", "0.experts.1 = 0"],
        ),
    ],
)
def test_what_a_list_inside_of_a_block_holds_is_one_part_where_it_is_alike(experts, names):
    model = nn.Module()
    model.routers = nn.ModuleList([Router(*experts)])
    edits = part_edits(model, lambda: model.routers[0](torch.randn(2, 4)))
    assert list(edits) == [f"routers.*.{name[2:]}" for name in names]


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.large, self.small = nn.Linear(400, 400), nn.Linear(1, 1)

    def forward(self, x):
        return self.gain * self.large(x) + self.small(x[:, :1])


def test_what_moves_and_holds_next_to_nothing_is_no_part():
    model = nn.Module()
    model.block = Uneven()
    edits = part_edits(model, lambda: model.block(torch.randn(8, 400)))
    assert list(edits) == ["block.large = 0"]


class Holding(nn.Module):
    """Of 31 parts one holds most of what all of them hold, and moves as much as any."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        for i in range(30):
            self.add_module(f"norm{i}", nn.LayerNorm(64))
        self.mix = nn.Linear(64, 64)

    def forward(self, x):
        for i in range(30):
            x = self.get_submodule(f"norm{i}")(x)
        return self.gain * self.mix(x)


def test_a_part_that_holds_much_counts_also_where_it_moves_little():
    model = nn.Module()
    model.block = Holding()
    edits = part_edits(model, lambda: model.block(torch.randn(4_000, 64)))
    assert list(edits) == ["block.mix = 0"]


def test_of_many_parts_some_are_tried():
    model = nn.Module()
    model.blocks = nn.ModuleList()
    for _ in range(9):
        block = nn.Module()
        block.gain, block.first, block.second = (
            nn.Parameter(torch.ones(4)),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )
        model.add_module(f"block{len(list(model.children()))}", block)

    def call():
        for block in list(model.children())[1:]:
            block.second(block.first(torch.ones(1, 4)))

    names = list(part_edits(model, call))
    assert len(names) == MOST_PARTS
    assert (names[0], names[-1]) == ("block1.first = 0", "block9.second = 0")


def test_parts_of_torchs_own_blocks_are_left_out_also_where_these_have_a_fast_path():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        edits = edits_of(model, x)
        assert {"layers.*.self_attn = 0", "layers.*.linear2 = 0"} <= set(edits)
        with edits["layers.*.linear2 = 0"]():
            without = model(x)
        h = x
        for block in model.layers:
            h = block.norm1(h + block.self_attn(h, h, h, need_weights=False)[0])
            h = block.norm2(h)
    assert torch.allclose(without, h, atol=1e-5)
