"""The diffusion transformers of level5 compute what their architectures say."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import LoadedTask, build  # noqa: E402

pytestmark = pytest.mark.torch

BF16 = torch.bfloat16

TINY = {
    "2": {
        "batch_size": 2,
        "image_size": 32,
        "patch_size": 8,
        "pos_embed_max_size": 8,
        "depth": 2,
        "context_tokens": 3,
        "frequency_size": 16,
    },
    "9": {
        "height": 4,
        "width": 6,
        "text_tokens": 5,
        "text_size": 24,
        "vector_size": 12,
        "hidden_size": 64,
        "num_heads": 2,
        "double_depth": 2,
        "single_depth": 2,
        "frequency_size": 16,
    },
}


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Fixed(nn.Module):
    """Answers the same whatever it is asked."""

    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: torch.Tensor) -> torch.Tensor:
        return self.answer


def tiny(task_id: str, **overrides: int) -> LoadedTask:
    return build(find_task(f"level5/{task_id}", shape_overrides=TINY[task_id] | overrides))


def model_of(loaded: LoadedTask) -> nn.Module:
    return loaded.make_model().eval().requires_grad_(False)


def wide(value):
    """Floating tensors, and what modules hold, in float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) else value


# The MMDiT.


def test_image_patches_and_their_inverse_agree():
    loaded = tiny("2")
    model, (x, *_) = model_of(loaded), loaded.inputs()
    # 8 x 8 pixels of 4 channels are 256 numbers: a kernel that copies them, pixel by pixel.
    copying = torch.eye(256).reshape(256, 8, 8, 4).permute(0, 3, 1, 2)
    tokens = nn.functional.conv2d(x, copying, stride=8).flatten(2).transpose(1, 2)
    assert torch.equal(model.unpatchify(tokens, 4, 4), x)
    # The second token is the patch right of the first; its numbers run channels last.
    assert torch.equal(tokens[0, 1], x[0, :, :8, 8:16].permute(1, 2, 0).flatten())


def test_the_patches_of_a_wide_image_keep_their_places():
    model = model_of(tiny("2"))
    tokens = torch.arange(8.0)[None, :, None].expand(1, 8, 256)
    image = model.unpatchify(tokens, 2, 4)
    assert image.shape == (1, 4, 16, 32)
    assert image[0, 0, ::8, ::8].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_position_embeddings_are_cropped_from_the_centre():
    model = model_of(tiny("2"))
    model.pos_embed.copy_(torch.arange(64.0)[None, :, None].expand_as(model.pos_embed))
    cropped = model.cropped_pos_embed(2, 4)[0, :, 0].tolist()
    assert cropped == [26, 27, 28, 29, 34, 35, 36, 37]


def test_position_embeddings_are_added_to_the_patches():
    loaded = tiny("2")
    model, inputs = model_of(loaded), loaded.inputs()
    first = model(*inputs)
    step = torch.randn(128)
    model.x_embedder.proj.bias += step
    shifted = model(*inputs)
    model.x_embedder.proj.bias -= step
    model.pos_embed += step
    assert not torch.allclose(shifted, first, atol=1e-3)
    assert torch.allclose(model(*inputs), shifted, atol=1e-5)


@pytest.mark.parametrize(("task_id", "width"), [("2", 128), ("9", 64)])
def test_the_final_layer_shifts_and_scales(task_id, width):
    final = wide(model_of(tiny(task_id))).final_layer
    x = torch.randn(1, 5, width, dtype=torch.float64)
    c = torch.randn(1, width, dtype=torch.float64)
    shift, scale = final.adaLN_modulation[1](nn.functional.silu(c)).chunk(2, -1)
    assert torch.allclose(final(x, c), final.linear(normed(x) * (1 + scale) + shift), atol=1e-12)


def test_the_image_follows_the_context_and_the_time():
    loaded = tiny("2")
    model, (x, t, pooled, context) = model_of(loaded), loaded.inputs()
    first = model(x, t, pooled, context)
    assert pooled is None
    assert not torch.allclose(model(x, t, None, -context), first, atol=1e-4)
    assert not torch.allclose(model(x, t + 1, None, context), first, atol=1e-4)


def test_every_sample_sees_all_context_tokens_in_any_order():
    loaded = tiny("2")
    model, (x, t, _, context) = model_of(loaded), loaded.inputs()
    first = model(x, t, None, context)
    assert torch.allclose(model(x, t, None, context.flip(0)), first, atol=1e-6)
    for token in range(3):
        changed = context.clone()
        changed[token] *= -1
        difference = (model(x, t, None, changed) - first).abs().amax(dim=(1, 2, 3))
        assert (difference > 1e-5).all()


def test_samples_of_a_batch_do_not_mix():
    loaded = tiny("2")
    model, (x, t, _, context) = model_of(loaded), loaded.inputs()
    first = model(x, t, None, context)
    assert torch.allclose(model(x[1:], t[1:], None, context), first[1:], atol=1e-6)


def by_hand(q, k, v, heads):
    """Attention head by head; q, k and v are (tokens, width)."""
    outputs = []
    for a, b, c in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        outputs.append((a @ b.T / a.shape[-1] ** 0.5).softmax(-1) @ c)
    return torch.cat(outputs, dim=-1)


def normed(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()


def test_a_joint_block_is_as_described():
    block = wide(model_of(tiny("2"))).joint_blocks[0]
    context, x, c = (torch.randn(n, 128, dtype=torch.float64) for n in (3, 5, 1))
    streams = ((block.context_block, context), (block.x_block, x))
    factors = [s.adaLN_modulation[1](nn.functional.silu(c)).chunk(6, -1) for s, _ in streams]
    qkv = [
        stream.attn.qkv(normed(tokens) * (1 + scale) + shift).chunk(3, -1)
        for (stream, tokens), (shift, scale, *_) in zip(streams, factors, strict=True)
    ]
    both = by_hand(*(torch.cat(pair) for pair in zip(*qkv, strict=True)), heads=2)
    expected = []
    for (stream, tokens), attention, parts in zip(
        streams, both.split((3, 5)), factors, strict=True
    ):
        _, _, gate, shift, scale, mlp_gate = parts
        attended = tokens + gate * stream.attn.proj(attention)
        h = stream.mlp.fc1(normed(attended) * (1 + scale) + shift)
        h = stream.mlp.fc2(nn.functional.gelu(h, approximate="tanh"))
        expected.append(attended + mlp_gate * h)
    for found, wanted in zip(block(context, x[None], c), expected, strict=True):
        assert torch.allclose(found[0], wanted, atol=1e-12)


def test_a_joint_block_with_closed_gates_changes_nothing():
    model = model_of(tiny("2"))
    block = model.joint_blocks[0]
    context, x, c = torch.randn(2, 3, 128), torch.randn(2, 16, 128), torch.randn(2, 128)
    assert not torch.allclose(block(context, x, c)[1], x, atol=1e-3)
    for stream in (block.context_block, block.x_block):
        linear = stream.adaLN_modulation[1]
        for gate in (2, 5):
            linear.weight[gate * 128 : (gate + 1) * 128] = 0
            linear.bias[gate * 128 : (gate + 1) * 128] = 0
    same_context, same_x = block(context, x, c)
    assert torch.equal(same_context, context)
    assert torch.equal(same_x, x)


def test_the_last_context_stream_ends_in_the_attention():
    model = model_of(tiny("2"))
    context, x, c = torch.randn(2, 3, 128), torch.randn(2, 16, 128), torch.randn(2, 128)
    assert model.joint_blocks[-1](context, x, c)[0] is None


@pytest.mark.parametrize("task_id", ["2", "9"])
def test_times_are_embedded_cosines_first(task_id):
    model = wide(model_of(tiny(task_id)))
    embedder = model.t_embedder if task_id == "2" else model.time_in
    t = torch.tensor([3.0, 0.5], dtype=torch.float64)
    angles = t[:, None] * torch.tensor([1e4 ** -(k / 8) for k in range(8)], dtype=torch.float64)
    waves = torch.cat((angles.cos(), angles.sin()), dim=1)
    assert torch.allclose(embedder(t), embedder.mlp(waves), atol=1e-12)


# The video transformer.


def test_video_patches_and_their_inverse_agree():
    loaded = tiny("9", patch_t=3, hidden_size=192)
    model, (x, *_) = model_of(loaded), loaded.inputs()
    patch = model.img_in.proj
    patch.weight.copy_(torch.eye(192).reshape(patch.weight.shape))
    tokens = model.img_in(x)
    assert tokens.shape == (1, 6, 192)
    assert torch.equal(model.unpatchify(tokens, (1, 2, 3)), x)
    # The second token is the patch right of the first; its numbers run channels first.
    assert torch.equal(tokens[0, 1], x[0, :, :, :2, 2:4].flatten())


def test_the_patches_of_a_video_keep_their_places():
    model = model_of(tiny("9"))
    tokens = torch.arange(12.0)[None, :, None].expand(1, 12, 64)
    video = model.unpatchify(tokens, (2, 2, 3))
    assert video.shape == (1, 16, 2, 4, 6)
    assert video[0, 0, :, ::2, ::2].flatten().tolist() == list(range(12))


def test_rotation_pairs_neighbours():
    rotate = tiny("9").namespace["rotate"]
    x = torch.randn(1, 5, 2, 6)
    cos, sin = torch.randn(5, 6), torch.randn(5, 6)
    expected = torch.empty_like(x)
    for i in range(0, 6, 2):
        a, b = x[..., i], x[..., i + 1]
        expected[..., i] = a * cos[:, None, i] - b * sin[:, None, i]
        expected[..., i + 1] = b * cos[:, None, i + 1] + a * sin[:, None, i + 1]
    assert torch.allclose(rotate(x, cos, sin), expected, atol=1e-6)
    assert rotate(x.to(BF16), cos, sin).dtype == BF16


def test_rotation_is_done_in_single_precision():
    rotate = tiny("9").namespace["rotate"]
    x = torch.randn(1, 5, 2, 6).to(BF16)
    angles = torch.randn(5, 6)
    expected = rotate(x.float(), angles.cos(), angles.sin()).to(BF16)
    assert torch.equal(rotate(x, angles.cos(), angles.sin()), expected)


def test_cosines_and_sines_hold_their_frequencies_twice():
    *_, cos, sin = tiny("9").inputs()
    assert cos.shape == (18, 32)
    for table, wave in ((cos, math.cos), (sin, math.sin)):
        assert torch.equal(table[:, :16], table[:, 16:])
        assert table[7, 3] == pytest.approx(wave(7 * 1e4 ** -(3 / 16)), abs=1e-5)


@pytest.mark.parametrize("blocks", ["double_blocks", "single_blocks"])
def test_only_the_image_is_rotated(blocks):
    model = wide(model_of(tiny("9")))
    block = getattr(model, blocks)[0]
    img = torch.randn(1, 18, 64, dtype=torch.float64)
    txt = torch.randn(1, 5, 64, dtype=torch.float64)
    vec = torch.randn(1, 64, dtype=torch.float64)
    angles = torch.rand(18, 16, dtype=torch.float64).repeat_interleave(2, dim=1)

    def run(angles, txt):
        tables = (angles.cos(), angles.sin())
        if blocks == "double_blocks":
            return torch.cat(block(img, txt, vec, None, *tables), dim=1)
        return block(torch.cat((img, txt), dim=1), vec, 18, None, *tables)

    first = run(angles, txt)
    # A common turn cancels between image queries and keys, not between image and text.
    assert not torch.allclose(run(angles + 1, txt), first, atol=1e-6)
    order = [3, 1, 4, 0, 2]
    assert torch.allclose(run(angles, txt[:, order])[:, 18:], first[:, 18:][:, order], atol=1e-9)


@pytest.mark.parametrize("blocks", ["double_blocks", "single_blocks"])
def test_a_video_block_with_closed_gates_changes_nothing(blocks):
    loaded = tiny("9")
    model = wide(model_of(loaded))
    block = getattr(model, blocks)[0]
    *_, cos, sin = (wide(x) for x in loaded.inputs())
    both = torch.randn(1, 23, 64, dtype=torch.float64)
    vec = torch.randn(1, 64, dtype=torch.float64)

    def run():
        if blocks == "single_blocks":
            return block(both, vec, 18, None, cos, sin)
        return torch.cat(block(both[:, :18], both[:, 18:], vec, None, cos, sin), dim=1)

    assert not torch.allclose(run(), both, atol=1e-3)
    for name, module in block.named_modules():
        if name in ("img_mod", "txt_mod", "modulation"):
            for gate in range(2, module.factor, 3):
                module.linear.weight[gate * 64 : (gate + 1) * 64] = 0
                module.linear.bias[gate * 64 : (gate + 1) * 64] = 0
    assert torch.equal(run(), both)


def root_normed(x):
    """Two heads of 32, each divided by its root mean square."""
    heads = x.unflatten(-1, (2, 32))
    return heads / (heads.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def turn(x, cos, sin):
    """Tokens, heads, 32 numbers: each pair of neighbours turned."""
    other = torch.empty_like(x)
    other[..., 0::2], other[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return x * cos[:, None] + other * sin[:, None]


def test_a_single_stream_block_is_as_described():
    block = wide(model_of(tiny("9"))).single_blocks[0]
    block.q_norm.weight.normal_()
    block.k_norm.weight.normal_()
    x, vec = torch.randn(7, 64, dtype=torch.float64), torch.randn(1, 64, dtype=torch.float64)
    tables = torch.randn(2, 4, 32, dtype=torch.float64).unbind(0)
    shift, scale, gate = block.modulation.linear(nn.functional.silu(vec)).chunk(3, -1)
    q, k, v, mlp = block.linear1(normed(x) * (1 + scale) + shift).split((64, 64, 64, 256), -1)

    turned = [
        torch.cat((turn(z[:4], *tables), z[4:])).flatten(1)
        for z in (root_normed(q) * block.q_norm.weight, root_normed(k) * block.k_norm.weight)
    ]
    h = by_hand(*turned, v, heads=2)
    h = torch.cat((h, nn.functional.gelu(mlp, approximate="tanh")), dim=-1)
    found = block(x[None], vec, 4, None, *tables)[0]
    # The norm and the rotation are in single precision as written.
    assert torch.allclose(found, x + gate * block.linear2(h), atol=1e-5)


def test_a_double_stream_block_is_as_described():
    block = wide(model_of(tiny("9"))).double_blocks[0]
    img, txt, vec = (torch.randn(n, 64, dtype=torch.float64) for n in (4, 3, 1))
    tables = torch.randn(2, 4, 32, dtype=torch.float64).unbind(0)
    factors, qkv = {}, []
    for name, tokens in (("img", img), ("txt", txt)):
        modulation = getattr(block, f"{name}_mod").linear
        factors[name] = modulation(nn.functional.silu(vec)).chunk(6, -1)
        shift, scale, *_ = factors[name]
        q, k, v = getattr(block, f"{name}_attn_qkv")(normed(tokens) * (1 + scale) + shift).chunk(
            3, -1
        )
        q, k = root_normed(q), root_normed(k)
        if name == "img":
            q, k = turn(q, *tables), turn(k, *tables)
        qkv.append((q.flatten(1), k.flatten(1), v))
    both = by_hand(*(torch.cat(pair) for pair in zip(*qkv, strict=True)), heads=2)
    found = block(img[None], txt[None], vec, None, *tables)
    for name, tokens, attention, one in zip(
        ("img", "txt"), (img, txt), both.split((4, 3)), found, strict=True
    ):
        _, _, gate, shift, scale, mlp_gate = factors[name]
        mlp = getattr(block, f"{name}_mlp")
        attended = tokens + gate * getattr(block, f"{name}_attn_proj")(attention)
        h = mlp.fc1(normed(attended) * (1 + scale) + shift)
        h = mlp.fc2(nn.functional.gelu(h, approximate="tanh"))
        assert torch.allclose(one[0], attended + mlp_gate * h, atol=1e-5)


def test_the_text_refiner_is_as_described():
    refiner = wide(model_of(tiny("9"))).txt_in
    text = torch.randn(5, 24, dtype=torch.float64)
    t = torch.tensor([3.0], dtype=torch.float64)
    silu = nn.functional.silu
    projection = refiner.c_embedder
    c = projection.linear_2(silu(projection.linear_1(text.mean(0, keepdim=True))))
    c = c + refiner.t_embedder(t)
    x = refiner.input_embedder(text)
    for block in refiner.individual_token_refiner.blocks:
        block.norm1.weight.normal_()
        block.norm2.bias.normal_()
        gate, mlp_gate = block.adaLN_modulation[1](silu(c)).chunk(2, -1)
        h = normed(x) * block.norm1.weight + block.norm1.bias
        x = x + gate * block.self_attn_proj(by_hand(*block.self_attn_qkv(h).chunk(3, -1), heads=2))
        h = normed(x) * block.norm2.weight + block.norm2.bias
        x = x + mlp_gate * block.mlp.fc2(silu(block.mlp.fc1(h)))
    assert torch.allclose(refiner(text[None], t)[0], x, atol=1e-10)


def packed(q, k, v, lengths, image_tokens):
    """Each sample as two sequences, valid and padded, attended to one after the other."""
    samples = []
    for i, length in enumerate(lengths):
        parts = []
        for part in (slice(0, image_tokens + length), slice(image_tokens + length, None)):
            scores = torch.einsum("qhd,khd->hqk", q[i, part], k[i, part]) / q.shape[-1] ** 0.5
            parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[i, part]))
        samples.append(torch.cat(parts).flatten(1))
    return torch.stack(samples)


@pytest.mark.parametrize("lengths", [(4, 4), (4, 1), (0, 3)])
def test_masked_attention_is_attention_over_packed_sequences(lengths):
    names = tiny("9").namespace
    q, k, v = torch.randn(3, 2, 10, 2, 32, dtype=torch.float64).unbind(0)
    text_mask = (torch.arange(4) < torch.tensor(lengths)[:, None]).float()
    found = names["attention"](q, k, v, names["same_sequence_mask"](text_mask, 6))
    assert torch.allclose(found, packed(q, k, v, lengths, 6), atol=1e-12)


def test_valid_tokens_do_not_see_padded_text():
    loaded = tiny("9")
    model = wide(model_of(loaded))
    x, t, text, text_mask, text2, cos, sin = (wide(v) for v in loaded.inputs())
    hidden = torch.randn(1, 5, 64, dtype=torch.float64)

    def run(hidden, text_mask):
        # In place of the refiner, which mixes all text tokens whatever the mask says.
        model.txt_in = Fixed(hidden)
        return model(x, t, text, text_mask, text2, cos, sin)

    changed = hidden.clone()
    changed[:, 3:] *= -1
    shorter = text_mask.clone()
    shorter[:, 3:] = 0
    assert not torch.allclose(run(hidden, text_mask), run(changed, text_mask), atol=1e-6)
    assert torch.allclose(run(hidden, shorter), run(changed, shorter), atol=1e-12)
    assert torch.allclose(run(hidden, shorter), run(hidden[:, :3], shorter[:, :3]), atol=1e-12)


def test_the_video_follows_each_of_its_inputs():
    loaded = tiny("9")
    model, inputs = wide(model_of(loaded)), [wide(x) for x in loaded.inputs()]
    first = model(*inputs)
    for i, value in enumerate(inputs):
        changed = list(inputs)
        changed[i] = value.flip(-1) if i >= 5 else value * 0.5 if i != 3 else value * 0
        assert not torch.allclose(model(*changed), first, atol=1e-7), f"input {i}"
