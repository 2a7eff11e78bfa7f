"""Level 5: S4, RWKV 6 and Mamba are the published architectures."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

FLOATS, TOKENS = torch.float32, torch.int64

PUBLISHED = {
    "5": ("s4", [16], (8, 16, 256), FLOATS, (8, 16, 256), 2_576),
    "10": (
        "rwkv_pytorch",
        [16384, 1, 1024, 64, 3584],
        (2, 128),
        TOKENS,
        (2, 128, 16384),
        47_665_152,
    ),
    "11": (
        "mamba2_pytorch",
        [16384, 8, 1024, 16, 64, 4],
        (2, 128),
        TOKENS,
        (2, 128, 16384),
        60_219_392,
    ),
}

SMALL = {
    "5": {"batch_size": 2, "num_hippos": 3, "seq_len": 10, "d_state": 8},
    "10": {
        "seq_len": 12,
        "vocab_size": 40,
        "dim": 12,
        "head_size": 4,
        "dim_ffn": 20,
        "shift_rank": 3,
        "decay_rank": 2,
        "chunk_len": 12,
    },
    "11": {
        "seq_len": 9,
        "vocab_size": 40,
        "num_layers": 2,
        "dim": 8,
        "d_state": 3,
        "delta_rank": 2,
    },
}


def small(task_id, **more):
    return build(find_task(f"level5/{task_id}", shape_overrides={**SMALL[task_id], **more}))


@pytest.fixture(autouse=True)
def _same_draws():
    torch.manual_seed(5)


@pytest.fixture
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def noisy(module):
    """Every parameter drawn anew: zeros and ones hide what is left out."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape) * 0.5)
    return module.eval()


@pytest.mark.parametrize("task_id", PUBLISHED)
def test_shapes_types_init_arguments_and_parameters(task_id):
    name, init_inputs, input_shape, input_type, output_shape, parameters = PUBLISHED[task_id]
    task = find_task(f"level5/{task_id}")
    assert task.name == name
    loaded = build(task)
    assert loaded.init_inputs() == init_inputs
    with torch.device("meta"):
        model, inputs = loaded.make_model().eval(), loaded.inputs()
        output = model(*inputs)
    assert [(tuple(x.shape), x.dtype) for x in inputs] == [(input_shape, input_type)]
    assert (tuple(output.shape), output.dtype) == (output_shape, torch.float32)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.state_dict()) == len(list(model.parameters()))


@pytest.mark.parametrize("task_id", SMALL)
def test_it_answers_each_input_alike_in_either_precision(task_id, capsys):
    loaded = small(task_id)
    model = loaded.make_model().eval()
    (first,), (second,) = loaded.inputs(1), loaded.inputs(2)
    with torch.no_grad():
        answer, other = model(first), model(second)
        assert torch.equal(model(first), answer)
        scale = answer.abs().max()
        assert (answer - other).abs().max() > 0.05 * scale
        wide = model.double()(first.double() if first.is_floating_point() else first)
    assert wide.dtype is torch.float64
    assert (wide - answer).abs().max() < 1e-4 * scale
    assert torch.get_default_dtype() is torch.float32
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("task_id", ["10", "11"])
def test_a_token_is_seen_by_itself_and_all_later_ones_only(task_id):
    loaded = small(task_id)
    model, (tokens,) = noisy(loaded.make_model()), loaded.inputs()
    changed = tokens.clone()
    changed[0, 3] = (tokens[0, 3] + 1) % 40
    with torch.no_grad():
        same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(dim=-1)
    length = tokens.shape[1]
    assert same.tolist() == [[True] * 3 + [False] * (length - 3), [True] * length]


# S4


def test_s4_is_a_sum_of_damped_oscillators(in_double):
    loaded = small("5")
    model, (u,) = loaded.make_model(), loaded.inputs()
    dt = 1 / 9
    with torch.no_grad():
        turn = torch.exp(torch.complex(-model.a.abs(), model.theta) * dt)
        state = torch.zeros(2, 3, 4, dtype=torch.complex128)
        own = torch.ones(3, 4, dtype=torch.complex128)
        outputs = []
        for t in range(10):
            state = turn * state + u[:, :, t, None]
            y = (2 * dt * model.b[0] * model.c[0] * state.real).sum(-1)
            y = y + (4 * dt * model.c[0] * model.x0[0] * own.real).sum(-1)
            outputs.append(y + model.D[0] * u[:, :, t])
            own = turn * own
        assert torch.allclose(model(u), torch.stack(outputs, dim=-1))


def test_s4_starts_as_described():
    model = build(find_task("level5/5")).make_model(seed=1)
    torch.manual_seed(1)
    drawn = [torch.randn(1, 16)] + [torch.randn(1, 16, 32) for _ in range(3)]
    assert [name for name, _ in model.named_parameters()] == ["theta", "a", "D", "b", "c", "x0"]
    assert all(map(torch.equal, (model.D, model.b, model.c, model.x0), drawn))
    assert model.theta[5, 31].item() == pytest.approx(31 * math.pi)
    assert model.a[:, 7].tolist() == pytest.approx([-(100 ** (h / 16)) for h in range(16)])


# RWKV


def wkv_loop(r, k, v, decay, bonus):
    """The recurrence that the chunks stand for: state (batch, heads, key, value)."""
    batch, heads, tokens, size = r.shape
    state, outputs = torch.zeros(batch, heads, size, size), []
    for t in range(tokens):
        added = k[:, :, t, :, None] * v[:, :, t, None, :]
        seen = state + bonus[:, :, None] * added
        outputs.append((r[:, :, t, :, None] * seen).sum(dim=-2))
        state = decay[:, :, t, :, None].clamp(min=0.005) * state + added
    return torch.stack(outputs, dim=2)


@pytest.mark.parametrize("length", [4, 6, 12])
def test_wkv_in_chunks_is_the_recurrence(length, in_double):
    r, k, v = torch.randn(3, 2, 3, 12, 4).unbind(0)
    decay, bonus = torch.rand(2, 3, 12, 4) ** 4, torch.randn(3, 4)
    assert (decay < 0.005).any()
    answer = small("10").namespace["wkv"](r, k, v, decay, bonus, length)
    # The sums of log decays are float32 by description.
    assert torch.allclose(answer, wkv_loop(r, k, v, decay, bonus), rtol=1e-4, atol=1e-5)


def test_wkv_bears_a_full_chunk_of_the_strongest_decay():
    r, k, v = torch.randn(3, 1, 2, 128, 4).unbind(0)
    answer = small("10").namespace["wkv"](r, k, v, torch.zeros(1, 2, 128, 4), torch.ones(2, 4), 128)
    wanted = wkv_loop(r, k, v, torch.zeros(1, 2, 128, 4), torch.ones(2, 4))
    assert torch.allclose(answer, wanted, rtol=1e-3, atol=1e-3)


class Products(TorchDispatchMode):
    """Notes the operand types of batched matrix products."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.types.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_scores_within_a_chunk_are_multiplied_in_float64():
    r, k, v, decay = torch.rand(4, 1, 2, 12, 4).unbind(0)
    with Products() as products:
        answer = small("10").namespace["wkv"](r, k, v, decay, torch.ones(2, 4), 12)
    assert products.types.count(torch.float64) == 1
    assert answer.dtype is torch.float32


def time_mix(att, x):
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    xx = before - x
    low = torch.tanh((x + xx * att.time_maa_x) @ att.time_maa_w1).chunk(5, dim=-1)
    names = ("w", "k", "v", "r", "g")
    xs = {
        name: x + xx * (getattr(att, f"time_maa_{name}") + low[i] @ att.time_maa_w2[i])
        for i, name in enumerate(names)
    }
    decay = att.time_decay + torch.tanh(xs["w"] @ att.time_decay_w1) @ att.time_decay_w2
    r, k, v = att.receptance(xs["r"]), att.key(xs["k"]), att.value(xs["v"])
    split = [t.unflatten(-1, (3, 4)).transpose(1, 2) for t in (r, k, v, (-decay.exp()).exp())]
    y = wkv_loop(*split, att.time_faaaa).transpose(1, 2)
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 64e-5).sqrt()
    y = y.flatten(2) * att.ln_x.weight + att.ln_x.bias
    return att.output(y * F.silu(att.gate(xs["g"])))


def channel_mix(ffn, x):
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    k = torch.relu(ffn.key(x + (before - x) * ffn.time_maa_k)) ** 2
    return ffn.value(k) * torch.sigmoid(ffn.receptance(x + (before - x) * ffn.time_maa_r))


def test_rwkv_is_the_published_model(in_double):
    loaded = small("10", num_layers=2)
    model, (tokens,) = noisy(loaded.make_model()), loaded.inputs()
    with torch.no_grad():
        x = model.ln0(0.01 * model.emb.weight[tokens])
        for block in model.blocks:
            x = x + time_mix(block.att, block.ln1(x))
            x = x + channel_mix(block.ffn, block.ln2(x))
        wanted = model.ln_out(x) @ model.head.weight.T
        assert torch.allclose(model(tokens), wanted, rtol=1e-4, atol=1e-4)


def test_rwkv_draws_its_time_parameters_small():
    model = small("10", dim=256, head_size=64).make_model()
    times = {n: p for n, p in model.named_parameters() if ".time_" in n}
    assert len(times) == 14
    for name, parameter in times.items():
        assert parameter.std().item() == pytest.approx(0.1, rel=0.25), name
    assert times["blocks.0.att.time_maa_w2"].shape == (5, 3, 256)


# Mamba


def mamba_block(block, x):
    """One sequence (tokens, channels), channel by channel and token by token."""
    a, gate = (x @ block.in_proj.weight.T).chunk(2, dim=-1)
    tokens, channels = a.shape
    seen = torch.zeros_like(a)
    for t in range(tokens):
        seen[t] = block.conv.bias
        for back in range(min(4, t + 1)):
            seen[t] += block.conv.weight[:, 0, 3 - back] * a[t - back]
    s = F.silu(seen)
    h, y = torch.zeros(channels, 3), torch.zeros_like(a)
    for t in range(tokens):
        B, C = block.s_B.weight @ s[t], block.s_C.weight @ s[t]
        raw = block.s_D[1].weight @ (block.s_D[0].weight @ s[t])
        delta = torch.log1p(torch.exp(block.D + raw))
        h = torch.exp(-block.A) * delta[:, None] * h + torch.outer(delta * s[t], B)
        y[t] = h @ C + block.D * s[t]
    return (y * F.silu(gate)) @ block.out_proj.weight.T


def test_mamba_is_the_published_model(in_double):
    loaded = small("11")
    model, (tokens,) = noisy(loaded.make_model()), loaded.inputs()
    with torch.no_grad():
        answer = model(tokens)
        for b in range(2):
            x = model.embedding.weight[tokens[b]]
            for block, norm in model.layers:
                length = x.square().sum(-1, keepdim=True).sqrt()
                x = x + mamba_block(block, norm.g * x / (length + 1e-5) * math.sqrt(8))
            assert torch.allclose(answer[b], x @ model.head.weight.T)


def test_mamba_starts_as_described():
    model = small("11", d_state=16).make_model()
    block, norm = model.layers[1]
    assert block.A.tolist() == [list(range(1, 17))] * 8
    assert block.D.tolist() == norm.g.tolist() == [1] * 8
    # A norm of 1e-5 is as large as what is added to it.
    tiny = torch.zeros(1, 8)
    tiny[0, 0] = 1e-5
    assert norm(tiny)[0, 0].item() == pytest.approx(math.sqrt(8) / 2)
