"""Level 3: Swin, attention and Mamba 2 tasks are the published architectures."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

IMAGE = [(10, 3, 224, 224)]
GPT = [768, 8, 0.0, 0.0, 1024]
SSD = [16, 128, 8, 64, 16, 64]

PUBLISHED = {
    "29": ([], IMAGE, (10, 1000), 19_959_292),
    "30": ([], IMAGE, (10, 1000), 28_347_154),
    "31": ([128, 4], [(2, 128, 128, 128)], (2, 128, 128, 128), 66_304),
    "44": (GPT, [(128, 512, 768)], (128, 512, 768), 7_087_872),
    "48": (SSD, [(16, 128, 8, 64)], (16, 128, 8, 64), 540_672),
    "49": (SSD, [(16, 128, 8, 64)], (16, 8, 64, 16), 540_672),
    "50": ([768, 12, 1024], [(16, 1024, 768)], (16, 1024, 768), 2_362_368),
}

SMALL = {
    "29": {"batch_size": 1},
    "30": {"batch_size": 1},
    "31": {"embed_dim": 8, "image_height": 4, "image_width": 6},
    "44": {"batch_size": 2, "seq_len": 8, "max_seqlen": 16, "n_embd": 32},
    "48": {"batch_size": 2, "seq_length": 12, "n_heads": 2, "d_head": 5, "d_state": 3},
    "49": {"batch_size": 2, "seq_length": 12, "n_heads": 2, "d_head": 5, "d_state": 3},
    "50": {"batch_size": 2, "max_seqlen": 8, "n_embd": 24},
}
SMALL["48"]["block_len"] = SMALL["49"]["block_len"] = 4


def small(task_id, **more):
    return build(find_task(f"level3-pike/{task_id}", shape_overrides={**SMALL[task_id], **more}))


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
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
    return module.eval()


@pytest.mark.parametrize("task_id", PUBLISHED)
def test_shapes_types_init_arguments_and_parameters(task_id):
    init_inputs, input_shapes, output_shape, parameters = PUBLISHED[task_id]
    loaded = build(find_task(f"level3-pike/{task_id}"))
    assert loaded.init_inputs() == init_inputs
    with torch.device("meta"):
        model, inputs = loaded.make_model().eval(), loaded.inputs()
        output = model(*inputs)
    assert [(tuple(x.shape), x.dtype) for x in inputs] == [(input_shapes[0], torch.float32)]
    assert (tuple(output.shape), output.dtype) == (output_shape, torch.float32)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert all(p.dtype is torch.float32 for p in model.parameters())


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
        wide = model.double()(first.double())
    assert wide.dtype is torch.float64
    assert (wide - answer).abs().max() < 1e-4 * scale
    assert torch.get_default_dtype() is torch.float32
    assert capsys.readouterr() == ("", "")


# Swin


@pytest.mark.parametrize("task_id", ["29", "30"])
def test_windows_are_squares_of_the_map_and_go_back(task_id):
    names = small(task_id).namespace
    x = torch.arange(2 * 6 * 9 * 2).view(2, 6, 9, 2)
    windows = names["window_partition"](x, 3)
    assert torch.equal(windows[6 + 4], x[1, 3:6, 3:6])
    assert torch.equal(names["window_reverse"](windows, 3, 6, 9), x)


def reached(names, task_id, shift, row, column, resolution=14):
    """Rows and columns of the pixels that one pixel reaches through a block of 7 x 7 windows."""
    block = names["SwinMLPBlock" if task_id == "29" else "SwinTransformerBlock"]
    block = block(dim=8, resolution=resolution, heads=2, window=7, shift=shift).eval()
    x = torch.randn(1, resolution * resolution, 8)
    changed = x.clone()
    changed[0, row * resolution + column, 0] += 3
    with torch.no_grad():
        moved = (block(x) != block(changed)).any(dim=-1).view(resolution, resolution)
    rows, columns = moved.any(dim=1).nonzero().view(-1), moved.any(dim=0).nonzero().view(-1)
    assert moved.sum() == len(rows) * len(columns)
    return rows.tolist(), columns.tolist()


@pytest.mark.parametrize("task_id", ["29", "30"])
@pytest.mark.parametrize(
    ("shift", "pixel", "rows", "columns"),
    [
        (0, (0, 8), (0, 7), (7, 14)),
        # Shifted by 3 the windows start at 3 and 10; what is left over at the rims keeps apart.
        (3, (0, 0), (0, 3), (0, 3)),
        (3, (5, 12), (3, 10), (10, 14)),
        (3, (13, 1), (10, 14), (0, 3)),
    ],
)
def test_a_block_mixes_within_its_windows_only(task_id, shift, pixel, rows, columns):
    found = reached(small(task_id).namespace, task_id, shift, *pixel)
    assert found == (list(range(*rows)), list(range(*columns)))


@pytest.mark.parametrize("task_id", ["29", "30"])
def test_every_other_block_is_shifted_but_where_one_window_is_the_map(task_id):
    with torch.device("meta"):
        model = small(task_id).make_model()
    blocks = [block for layer in model.layers for block in layer.blocks]
    shifts = [getattr(b, "shift", None) for b in blocks]
    if task_id == "29":
        assert all(b.padding in {(4, 3), (0, 0)} for b in blocks)
        shifts = [b.padding[1] for b in blocks]
    assert shifts == [0, 3] * 5 + [0, 0]
    assert {b.window for b in blocks} == {7}


def test_swin_mlp_mixes_positions_per_head_by_one_matrix_for_all_windows(in_double):
    block = noisy(small("29").namespace["SwinMLPBlock"](4, 4, 2, window=2, shift=0))
    x = torch.randn(1, 4, 4, 4)
    weight = block.spatial_mlp.weight.view(2, 4, 4)
    bias = block.spatial_mlp.bias.view(2, 4)
    with torch.no_grad():
        answer = block.mix(x)
        for head in range(2):
            for top, left in ((0, 0), (0, 2), (2, 0), (2, 2)):
                part = slice(top, top + 2), slice(left, left + 2), slice(2 * head, 2 * head + 2)
                wanted = weight[head] @ x[0][part].reshape(4, 2) + bias[head][:, None]
                assert torch.allclose(answer[0][part].reshape(4, 2), wanted)


def test_swin_mlp_normalises_before_and_v2_after(in_double):
    for task_id, name in (("29", "SwinMLPBlock"), ("30", "SwinTransformerBlock")):
        block = noisy(small(task_id).namespace[name](8, 14, 2, window=7, shift=3))
        x = torch.randn(2, 196, 8)
        grown = torch.cat([x[:, :, :1] + 5, x[:, :, 1:]], dim=2)
        for norm in (block.norm1, block.norm2):
            torch.nn.init.zeros_(norm.weight)
            torch.nn.init.zeros_(norm.bias)
        with torch.no_grad():
            added = block(x) - x
            assert torch.allclose(block(grown) - grown, added)
            assert (added.abs().max() == 0) == (task_id == "30")


def test_merging_takes_the_four_corners_in_column_order(in_double):
    for task_id, normalised in (("29", 16), ("30", 8)):
        merge = noisy(small(task_id).namespace["PatchMerging"](4, 4))
        assert merge.norm.weight.shape == (normalised,)
        x = torch.randn(1, 4, 4, 4)
        y = torch.cat([x[0, 2, 0], x[0, 3, 0], x[0, 2, 1], x[0, 3, 1]])
        wanted = (
            merge.reduction(merge.norm(y)) if task_id == "29" else merge.norm(merge.reduction(y))
        )
        assert torch.allclose(merge(x.view(1, 16, 4))[0, 2], wanted)


def test_swin_v2_attends_by_cosine_with_a_continuous_bias(in_double):
    window, heads, channels = 3, 2, 4
    attention = noisy(small("30").namespace["WindowAttention"](heads * channels, window, heads))
    with torch.no_grad():
        attention.logit_scale.copy_(torch.tensor([1.5, 9.0]).view(2, 1, 1))
        x = torch.randn(1, window * window, heads * channels)
        answer = attention(x)[0]

        wq, wk, wv = attention.qkv.weight.split(heads * channels)
        q, k, v = x[0] @ wq.T + attention.q_bias, x[0] @ wk.T, x[0] @ wv.T + attention.v_bias
        mixed = torch.zeros_like(x[0])
        for head in range(heads):
            part = slice(head * channels, (head + 1) * channels)
            scale = min(math.exp(attention.logit_scale[head]), 100.0)
            for i in range(9):
                scores = []
                for j in range(9):
                    step = ((i // 3 - j // 3) / 2 * 8, (i % 3 - j % 3) / 2 * 8)
                    step = [math.copysign(math.log2(abs(s) + 1) / 3, s) for s in step]
                    bias = 16 * torch.sigmoid(attention.cpb_mlp(torch.tensor(step))[head])
                    cosine = F.cosine_similarity(q[i, part], k[j, part], dim=0)
                    scores.append(scale * cosine + bias)
                mixed[i, part] = torch.stack(scores).softmax(dim=0) @ v[:, part]
        assert torch.allclose(answer, attention.proj(mixed))


def test_swin_v2_starts_as_described():
    model = small("30").make_model()
    attention = model.layers[3].blocks[1].attn
    assert attention.logit_scale.shape == (24, 1, 1)
    assert torch.allclose(attention.logit_scale, torch.tensor(math.log(10.0)))
    assert attention.logit_scale.requires_grad
    assert attention.q_bias.abs().max() == attention.v_bias.abs().max() == 0
    table = attention.relative_coords_table
    assert tuple(table.shape) == (1, 13, 13, 2)
    # A whole window away is log2(9) / log2(8); one step is a sixth of 8.
    assert table[0, 12, 0].tolist() == pytest.approx([math.log2(9) / 3, -math.log2(9) / 3])
    assert table[0, 6, 7].tolist() == pytest.approx([0, math.log2(8 / 6 + 1) / 3])


# Attention


def test_vision_attention_is_over_the_pixels_of_each_image_and_makes_the_weights():
    loaded = small("31")
    model, (x,) = loaded.make_model().eval(), loaded.inputs()
    made = []
    model.attn.register_forward_hook(lambda module, args, output: made.append(output[1]))
    with torch.no_grad():
        answer = model(x)
        pixels = x.flatten(2).transpose(1, 2)
        q, k, v = F.linear(pixels, model.attn.in_proj_weight, model.attn.in_proj_bias).chunk(3, -1)
        q, k, v = (t.view(2, 24, 4, 2).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 24, 8)
        wanted = model.norm(model.attn.out_proj(attended) + pixels)
    assert torch.allclose(answer.flatten(2).transpose(1, 2), wanted, atol=1e-5)
    assert [tuple(weights.shape) for weights in made] == [(2, 24, 24)]


@pytest.mark.parametrize("task_id", ["44", "50"])
def test_attention_is_causal(task_id):
    loaded = small(task_id)
    model, (x,) = loaded.make_model().eval(), loaded.inputs()
    changed = x.clone()
    changed[:, 5:] += torch.randn(x[:, 5:].shape)
    with torch.no_grad():
        same = torch.isclose(model(x), model(changed), atol=1e-6).all(dim=-1)
    assert same.tolist() == [[True] * 5 + [False] * 3] * 2


def heads_of(x, linear, heads):
    B, T, C = x.shape
    parts = linear(x).chunk(3, dim=-1)
    return [part.view(B, T, heads, C // heads).transpose(1, 2) for part in parts]


def test_the_gpt_block_is_the_textbook_one(in_double):
    loaded = small("44")
    model, (x,) = noisy(loaded.make_model()), loaded.inputs()
    with torch.no_grad():
        q, k, v = heads_of(model.ln_1(x), model.attn.c_attn, heads=8)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = x + model.attn.c_proj(y.transpose(1, 2).flatten(2))
        hidden = F.gelu(model.mlp["c_fc"](model.ln_2(y)), approximate="tanh")
        assert torch.allclose(model(x), y + model.mlp["c_proj"](hidden))


def test_relu_attention_weighs_by_scores_and_ignores_its_projection(in_double):
    loaded = small("50")
    model, (x,) = noisy(loaded.make_model()), loaded.inputs()
    with torch.no_grad():
        answer = model(x)
        q, k, v = heads_of(x, model.c_attn, heads=12)
        scores = torch.relu(q @ k.transpose(-1, -2) / math.sqrt(2)).tril()
        assert torch.allclose(answer, (scores @ v).transpose(1, 2).flatten(2))
        torch.nn.init.zeros_(model.c_proj.weight)
        torch.nn.init.ones_(model.c_proj.bias)
        assert torch.equal(model(x), answer)


# Mamba 2


@pytest.mark.parametrize("block_len", [4, 6, 12])
def test_mamba_2_is_a_recurrence(block_len, in_double):
    models = [small(i, block_len=block_len).make_model() for i in ("48", "49")]
    with torch.no_grad():
        (X,) = small("48").inputs()
        A, B, C = models[0].A, models[0].B, models[0].C
        start = torch.randn(2, 2, 5, 3)
        for begin in (None, start):
            state, outputs = torch.zeros_like(start) if begin is None else begin, []
            for t in range(12):
                decay = A[:, t].exp()[:, :, None, None]
                state = decay * state + X[:, t, :, :, None] * B[:, t, :, None, :]
                outputs.append((state * C[:, t, :, None, :]).sum(-1))
            given = () if begin is None else (begin.unsqueeze(1),)
            assert torch.allclose(models[0](X, *given), torch.stack(outputs, dim=1))
            assert torch.allclose(models[1](X, *given), state)


@pytest.mark.parametrize("task_id", ["48", "49"])
@pytest.mark.parametrize("block_len", [32, 64])
def test_mamba_2_works_in_chunks_and_on_what_it_does_not_return(task_id, block_len):
    loaded = build(find_task(f"level3-pike/{task_id}", shape_overrides={"block_len": block_len}))
    with torch.device("meta"):
        model, inputs = loaded.make_model(), loaded.inputs()
        as_written = torch.backends.opt_einsum.flags(enabled=False)
        with torch.no_grad(), as_written, FlopCounterMode(display=False) as counter:
            model(*inputs)
    batch, length, heads, head, state = 16, 128, 8, 64, 16
    within = 2 * batch * length * block_len * heads * (state + head)
    one_pass = 2 * batch * length * heads * head * state
    chunks = length // block_len
    between = 2 * batch * heads * (chunks + 1) ** 2 * head * state
    passes = 2 if task_id == "48" else 1
    assert counter.get_total_flops() == within + passes * one_pass + between


def test_mamba_2_draws_a_then_b_then_c():
    loaded = small("48")
    model = loaded.make_model(seed=1)
    torch.manual_seed(1)
    A, B, C = torch.randn(2, 12, 2), torch.randn(2, 12, 2, 3), torch.randn(2, 12, 2, 3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), (A, B, C), strict=True))
