"""Mutants: which layers there are, and that an edit does what it says and leaves no trace."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_mutants import (  # noqa: E402
    LEAST_SHARE,
    MOST_LAYERS,
    MOST_PLAIN,
    layer_edits,
    plain_edits,
    zeroed_weights,
)

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.tail = nn.Sequential(nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5))
        self.scale = nn.Parameter(torch.full((5,), 2.0))
        self.unused = nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.tail(x) * self.scale


def edits_of(model, *inputs):
    return layer_edits(model, lambda: model(*inputs))


def test_layers_are_what_a_person_counts():
    model = Net().eval()
    layers = ["stem", "blocks.0", "blocks.1", "blocks.2", "tail.0", "tail.2"]
    both = [name for layer in layers for name in (layer, f"{layer} = 0")]
    assert list(edits_of(model, torch.randn(2, 4))) == [
        *both,
        "scale = 0",
        "unused.weight = 0",
        "unused.bias = 0",
    ]


def test_a_skipped_block_lets_its_input_through_and_comes_back():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 4)
    before = model(x)
    edits = edits_of(model, x)
    with edits["blocks.1"]():
        without = model(x)
    h = model.blocks[2](model.blocks[0](model.stem(x)))
    assert torch.equal(without, model.tail(h) * model.scale)
    assert torch.equal(model(x), before)


def test_a_layer_can_be_left_out_without_its_input():
    model, x = Net().eval(), torch.randn(2, 4)
    with edits_of(model, x)["blocks.1 = 0"]():
        without = model(x)
    h = model.blocks[2](torch.zeros(2, 8))
    assert torch.equal(without, model.tail(h) * model.scale)


def test_layers_called_with_keywords_are_left_out_too():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, *, by):
            return self.inner(x)[:, :3] * by

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Scaled()])

        def forward(self, x):
            return self.parts[0](x=x, by=2.0) if x.sum() > 1e9 else self.parts[0](x, by=2.0)

    model, x = Outer(), torch.randn(2, 4)
    with edits_of(model, x)["parts.0"]():
        assert torch.equal(model(x), model(torch.zeros_like(x)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_compiled_layer_is_left_out_by_its_weights():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.script(nn.Linear(4, 4))

        def forward(self, x):
            return self.inner(x)

    model, x = Outer(), torch.randn(2, 4)
    edits = edits_of(model, x)
    assert list(edits) == ["inner.weight = 0", "inner.bias = 0"]
    with edits["inner.weight = 0"]():
        assert torch.equal(model(x)[0], model.inner.bias)


def test_a_layer_of_another_shape_sees_zeros():
    model, x = Net().eval(), torch.randn(2, 4)
    with edits_of(model, x)["stem"]():
        skipped = model(x)
    assert torch.equal(skipped, model(torch.zeros_like(x)))


def test_several_outputs_are_the_inputs_of_their_shapes():
    class Joint(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, context, x):
            return self.mix(context), self.mix(x)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Joint()])

        def forward(self, context, x):
            return self.blocks[0](context, x)

    model, inputs = Pair(), (torch.randn(2, 4), torch.randn(3, 4))
    with edits_of(model, *inputs)["blocks.0"]():
        found = model(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, inputs, strict=True))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        parts = [x[:1], x[1:3], x[3:]]
        pairs = zip(self.experts, parts, strict=True)
        return torch.cat([expert(part) for expert, part in pairs])


def test_experts_that_share_the_work_are_one_layer():
    model, x = Experts(), torch.randn(7, 4)
    edits = edits_of(model, x)
    assert list(edits) == ["experts", "experts = 0"]
    with edits["experts"]():
        assert torch.equal(model(x), x)


def test_zeroed_parameters_and_a_hundredth_of_the_weights_come_back():
    model, x = Net().eval(), torch.randn(2, 4)
    before = {n: p.clone() for n, p in model.named_parameters()}
    with edits_of(model, x)["scale = 0"]():
        assert model(x).abs().max() == 0
    edit = zeroed_weights(model)
    assert edit is not None
    with edit():
        changed = sum(int((p != before[n]).sum()) for n, p in model.named_parameters())
        total = sum(p.numel() for p in model.parameters())
        assert 0.005 < changed / total < 0.03
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_model_without_weights_has_no_such_mutants():
    model = nn.Sequential(nn.ReLU(), nn.Softmax(dim=-1))
    assert edits_of(model, torch.randn(3)) == {}
    assert zeroed_weights(model) is None


def test_of_a_deep_model_the_first_and_last_layers_are_among_those_tried():
    model = nn.Module()
    model.layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
    names = list(layer_edits(model, lambda: model.layers(torch.randn(1, 2))))
    assert len(names) == 2 * MOST_LAYERS
    assert names[0] == "layers.0"
    assert names[-1] == "layers.99 = 0"


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Identity(), nn.Flatten(0))
        self.unused, self.norm = nn.ReLU(), nn.InstanceNorm1d(2)

    def forward(self, x):
        return self.body(self.norm(x))


def test_layers_without_parameters_let_their_input_through():
    torch.manual_seed(0)
    model, x = Plain().eval(), torch.randn(3, 2, 4)
    edits = plain_edits(model, lambda: model(x))
    assert list(edits) == ["every Tanh", "norm"]
    before = model(x)
    with edits["every Tanh"]():
        without = model(x)
    assert torch.equal(without, model.body[0](model.norm(x)).flatten())
    assert torch.equal(model(x), before)


class Louder(nn.Module):
    def forward(self, x):
        return 1.5 * x


def test_of_many_layers_without_parameters_some_are_tried_alone():
    layers = [nn.Sequential(nn.Dropout(), Louder()) for _ in range(18)]
    model = nn.Sequential(nn.Linear(2, 2), *layers).eval()
    edits = list(plain_edits(model, lambda: model(torch.ones(1, 2))))
    share = 2 / (2 * 37 + 6)
    assert share < LEAST_SHARE
    assert edits == ["every Louder"]
    few = nn.Sequential(nn.Linear(2, 2), *[Louder() for _ in range(MOST_PLAIN + 2)]).eval()
    edits = list(plain_edits(few, lambda: few(torch.ones(1, 2))))
    assert len(edits) == 1 + MOST_PLAIN
    assert (edits[0], edits[1], edits[-1]) == ("every Louder", "1", str(MOST_PLAIN + 2))


def test_small_layers_without_parameters_are_left_out_together():
    torch.manual_seed(0)
    pairs = [nn.Sequential(nn.Linear(4, 4), Louder(), nn.Sigmoid()) for _ in range(40)]
    model, x = nn.Sequential(*pairs).eval(), torch.randn(8, 4)
    edits = plain_edits(model, lambda: model(x))
    assert list(edits) == ["every Louder", "every Sigmoid"]
    with edits["every Louder"]():
        without = model(x)
    expected = x
    for linear, _, sigmoid in pairs:
        expected = sigmoid(linear(expected))
    assert torch.equal(without, expected)


def test_what_is_done_behind_another_layer_is_never_left_out_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), Louder())
    assert list(plain_edits(model, lambda: model(torch.randn(64, 4)))) == ["every Tanh", "4"]


def test_what_is_too_small_for_a_clock_is_no_mutant():
    model = nn.Sequential(nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh())
    assert plain_edits(model, lambda: model(torch.randn(1, 400))) == {}
    assert plain_edits(model, lambda: model(torch.randn(400, 400)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(4))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = x + self.positions
        for block in self.blocks:
            x = x + block(x)
        return x


def test_blocks_are_layers_also_in_an_encoder_with_a_parameter_of_its_own():
    model = nn.Module()
    model.encoder = Encoder()
    edits = layer_edits(model, lambda: model.encoder(torch.randn(2, 4)))
    assert [name for name in edits if "= 0" not in name] == [
        f"encoder.blocks.{i}" for i in range(3)
    ]
    assert "encoder.positions = 0" in edits


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["nested", "sparse", "mkldnn", "vmap"])
def test_tensors_that_cannot_be_compared_are_let_be(kind):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            match kind:
                case "nested":
                    found = self.act(torch.nested.nested_tensor([x[:2], x[2:]]))
                    return found.to_padded_tensor(0.0)
                case "sparse":
                    return self.act(x.to_sparse()).to_dense()
                case "mkldnn":
                    return self.act(x.to_mkldnn()).to_dense()
                case _:
                    return torch.func.vmap(self.act)(x)

    model = Odd().eval()
    assert plain_edits(model, lambda: model(torch.randn(5, 4))) == {}


def test_layers_that_give_no_tensor_or_take_keywords_alone_are_let_be():
    class Odd(nn.Module):
        def forward(self, *, x):
            return x, x.relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

        def forward(self, x):
            return self.odd(x=x)[1]

    model = Net()
    assert plain_edits(model, lambda: model(torch.randn(3))) == {}
