"""The diffusion tasks of level5 have the published sizes and behave as their architectures must."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import LoadedTask, build  # noqa: E402

pytestmark = pytest.mark.torch

BF16, FP32 = torch.bfloat16, torch.float32

PUBLISHED = {
    "2": (
        [((8, 4, 256, 256), FP32), ((8,), FP32), None, ((8, 1792), FP32)],
        ((8, 4, 256, 256), FP32),
        3_210_467_584,
    ),
    "6": ([((8, 3, 8, 64, 64), FP32)], ((8, 6, 8, 32, 32), FP32), 1_029_446),
    "8": ([((8, 3, 16, 32, 32), FP32)], ((8, 3, 16, 64, 64), FP32), 1_245_827),
    "9": (
        [
            ((1, 16, 3, 32, 32), BF16),
            ((1,), FP32),
            ((1, 10, 1024), BF16),
            ((1, 10), FP32),
            ((1, 1024), BF16),
            ((768, 128), FP32),
            ((768, 128), FP32),
        ],
        ((1, 16, 3, 32, 32), BF16),
        5_688_926_272,
    ),
}

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
    "6": {"batch_size": 2, "frames": 3, "height": 8, "width": 8, "channels": 8, "norm_groups": 4},
    "8": {"batch_size": 2, "frames": 3, "height": 4, "width": 4, "channels": 8, "norm_groups": 4},
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

TINY_OUTPUTS = {
    "2": (2, 4, 32, 32),
    "6": (2, 6, 3, 4, 4),
    "8": (2, 3, 3, 8, 8),
    "9": (1, 16, 3, 4, 6),
}


def tiny(task_id: str, **overrides: int) -> LoadedTask:
    return build(find_task(f"level5/{task_id}", shape_overrides=TINY[task_id] | overrides))


def model_of(loaded: LoadedTask) -> nn.Module:
    return loaded.make_model().eval().requires_grad_(False)


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


def wide(value):
    """Floating tensors, and what modules hold, in float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) else value


def frames_that_differ(a: torch.Tensor, b: torch.Tensor) -> list[bool]:
    return [
        not torch.allclose(x, y, atol=1e-6) for x, y in zip(a.unbind(2), b.unbind(2), strict=True)
    ]


@pytest.mark.parametrize("task_id", PUBLISHED)
def test_shapes_dtypes_and_parameters(task_id):
    inputs, (output_shape, output_dtype), parameters = PUBLISHED[task_id]
    loaded = build(find_task(f"level5/{task_id}"))
    assert loaded.init_inputs() == []
    with torch.device("meta"), torch.no_grad():
        model = loaded.make_model().eval()
        arguments = loaded.inputs()
        output = model(*arguments)
    assert [None if x is None else (tuple(x.shape), x.dtype) for x in arguments] == inputs
    assert (tuple(output.shape), output.dtype) == (output_shape, output_dtype)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert {p.dtype for p in model.parameters()} == {output_dtype}


@pytest.mark.parametrize("task_id", TINY)
def test_a_tiny_one_runs_quietly_and_repeats_itself(task_id, capfd):
    loaded = tiny(task_id)
    model, inputs = model_of(loaded), loaded.inputs()
    before = torch.random.get_rng_state()
    first = model(*inputs)
    assert tuple(first.shape) == TINY_OUTPUTS[task_id]
    assert first.isfinite().all()
    assert torch.equal(model(*inputs), first)
    assert torch.equal(copy.deepcopy(model)(*inputs), first)
    assert torch.equal(model_of(loaded)(*inputs), first)
    assert torch.get_default_dtype() == FP32
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("task_id", TINY)
def test_another_input_gives_another_output(task_id):
    loaded = tiny(task_id)
    model = model_of(loaded)
    first, second = model(*loaded.inputs(0)), model(*loaded.inputs(1))
    assert (first - second).float().std() > 0.1 * first.float().std() > 0


@pytest.mark.parametrize("task_id", TINY)
def test_float64_agrees_with_the_native_precision(task_id):
    loaded = tiny(task_id)
    model, inputs = model_of(loaded), loaded.inputs()
    native = model(*inputs)
    torch.set_default_dtype(torch.float64)
    try:
        exact = wide(model)(*(wide(x) for x in inputs))
    finally:
        torch.set_default_dtype(FP32)
    assert exact.dtype == torch.float64
    error = (native.double() - exact).std() / exact.std()
    assert error < (0.05 if native.dtype == BF16 else 1e-5)


@pytest.mark.parametrize("task_id", TINY)
def test_no_parameter_is_registered_and_forgotten(task_id):
    loaded = tiny(task_id)
    model, inputs = model_of(loaded).requires_grad_(True), loaded.inputs()
    model(*inputs).float().pow(2).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


# Names and order of the published architectures.


def test_the_mmdit_has_the_published_names():
    with torch.device("meta"):
        model = build(find_task("level5/2")).make_model()
    names = list(model.state_dict())
    block = [
        f"{part}.{kind}"
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1")
        for kind in ("weight", "bias")
    ]
    assert names[:7] == [
        "pos_embed",
        "x_embedder.proj.weight",
        "x_embedder.proj.bias",
        "t_embedder.mlp.0.weight",
        "t_embedder.mlp.0.bias",
        "t_embedder.mlp.2.weight",
        "t_embedder.mlp.2.bias",
    ]
    first = [
        f"joint_blocks.0.{stream}_block.{name}" for stream in ("context", "x") for name in block
    ]
    assert names[7 : 7 + len(first)] == first
    last = [n for n in names if n.startswith("joint_blocks.27.context_block")]
    assert [n.split("context_block.")[1] for n in last] == block[:2] + block[-2:]
    assert names[-4:] == [
        "final_layer.linear.weight",
        "final_layer.linear.bias",
        "final_layer.adaLN_modulation.1.weight",
        "final_layer.adaLN_modulation.1.bias",
    ]
    assert model.pos_embed.shape == (1, 4096, 1792)


@pytest.mark.parametrize(("task_id", "blocks"), [("6", "down_blocks"), ("8", "up_blocks")])
def test_the_vaes_have_the_published_order(task_id, blocks):
    model = tiny(task_id).make_model()
    top = list(dict.fromkeys(name.split(".")[0] for name in model.state_dict()))
    assert top == ["conv_in", blocks, "mid_block", "conv_norm_out", "conv_out"]
    middle = [n.removeprefix("mid_block.") for n in model.state_dict() if "mid_block" in n]
    attention = ["group_norm", "to_q", "to_k", "to_v", "to_out.0"]
    assert middle[:10] == [f"attentions.0.{n}.{k}" for n in attention for k in ("weight", "bias")]
    resnet = ["norm1", "conv1.conv", "norm2", "conv2.conv"]
    assert middle[10:] == [
        f"resnets.{i}.{n}.{k}" for i in (0, 1) for n in resnet for k in ("weight", "bias")
    ]


def test_the_decoder_draws_its_middle_before_its_up_block():
    loaded = tiny("8")
    model = loaded.make_model(seed=5)
    torch.manual_seed(5)
    nn.Conv3d(3, 8, 3)
    first_drawn = nn.Conv3d(8, 8, 3)
    assert torch.equal(model.mid_block.resnets[0].conv1.conv.weight, first_drawn.weight)


def test_the_transformer_has_the_published_names():
    with torch.device("meta"):
        names = list(build(find_task("level5/9")).make_model().state_dict())
    tops = ["img_in", "txt_in", "time_in", "vector_in", "double_blocks", "single_blocks"]
    assert list(dict.fromkeys(n.split(".")[0] for n in names)) == [*tops, "final_layer"]

    def parts(prefix):
        inside = [n.removeprefix(prefix) for n in names if n.startswith(prefix)]
        return list(dict.fromkeys(n.rpartition(".")[0] for n in inside))

    stream = ["mod.linear", "attn_qkv", "attn_q_norm", "attn_k_norm", "attn_proj"]
    stream += ["mlp.fc1", "mlp.fc2"]
    assert parts("double_blocks.19.") == [f"{s}_{n}" for s in ("img", "txt") for n in stream]
    assert parts("single_blocks.39.") == [
        "linear1",
        "linear2",
        "q_norm",
        "k_norm",
        "modulation.linear",
    ]
    assert parts("txt_in.individual_token_refiner.blocks.1.") == [
        "norm1",
        "self_attn_qkv",
        "self_attn_proj",
        "norm2",
        "mlp.fc1",
        "mlp.fc2",
        "adaLN_modulation.1",
    ]
    assert parts("txt_in.")[:5] == [
        "input_embedder",
        "t_embedder.mlp.0",
        "t_embedder.mlp.2",
        "c_embedder.linear_1",
        "c_embedder.linear_2",
    ]


def test_the_transformer_starts_as_described():
    model = model_of(tiny("9", hidden_size=512))
    patch = model.img_in.proj
    assert patch.bias.abs().max() == 0
    # Xavier uniform over 64 inputs and 512 outputs.
    assert patch.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (64 + 512)), rel=0.02)
    for embedder in (model.time_in, model.txt_in.t_embedder):
        for layer in (embedder.mlp[0], embedder.mlp[2]):
            assert layer.weight.float().std().item() == pytest.approx(0.02, rel=0.05)


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


# The causal VAEs.


def without_group_norms(model: nn.Module) -> nn.Module:
    """Their statistics span all frames: what is left must be causal."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, nn.Identity())
    return model


@pytest.mark.parametrize("task_id", ["6", "8"])
def test_a_later_frame_does_not_change_earlier_ones(task_id):
    loaded = tiny(task_id, frames=5)
    (x,) = loaded.inputs()
    changed = x.clone()
    changed[:, :, 3] += 1
    model = model_of(loaded)
    assert frames_that_differ(model(x), model(changed)) == [True] * 5
    model = without_group_norms(model)
    assert frames_that_differ(model(x), model(changed)) == [False] * 3 + [True] * 2


@pytest.mark.parametrize("task_id", ["6", "8"])
def test_frames_reach_each_other_by_attention_and_not_within_two_convolutions(task_id):
    loaded = tiny(task_id)
    model = without_group_norms(model_of(loaded))
    x = torch.randn(1, 8, 9, 4, 4)
    changed = x.clone()
    changed[:, :, 2] += 1
    # A resnet looks back over four frames, the attention over all.
    resnet = model.mid_block.resnets[0]
    assert frames_that_differ(resnet(x), resnet(changed)) == [False] * 2 + [True] * 5 + [False] * 2
    assert (
        frames_that_differ(model.mid_block(x), model.mid_block(changed)) == [False] * 2 + [True] * 7
    )


@pytest.mark.parametrize("task_id", ["6", "8"])
def test_the_mask_is_frame_causal_and_follows_its_model(task_id):
    frame_causal_mask = tiny(task_id).namespace["frame_causal_mask"]
    for dtype in (FP32, torch.float64):
        mask = frame_causal_mask(3, 2, torch.empty(1, dtype=dtype))
        frame = torch.arange(6) // 2
        expected = torch.where(frame[:, None] >= frame[None, :], 0.0, float("-inf")).to(dtype)
        assert mask.dtype == dtype
        assert torch.equal(mask, expected)
    assert frame_causal_mask(3, 2, torch.empty(1, device="meta")).device.type == "meta"


@pytest.mark.parametrize("task_id", ["6", "8"])
def test_attention_is_one_head_with_biases_and_a_residual(task_id):
    loaded = tiny(task_id)
    attention = wide(model_of(loaded)).mid_block.attentions[0]
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    mask = loaded.namespace["frame_causal_mask"](3, 2, x)
    groups = x.transpose(1, 2).reshape(2, 4, 12)
    spread = groups.var(dim=-1, correction=0, keepdim=True)
    h = (groups - groups.mean(-1, keepdim=True)) / (spread + 1e-6).sqrt()
    h = h.reshape(2, 8, 6).transpose(1, 2)
    q, k, v = attention.to_q(h), attention.to_k(h), attention.to_v(h)
    weights = (q @ k.transpose(1, 2) / 8**0.5 + mask).softmax(-1)
    expected = x + attention.to_out[0](weights @ v)
    assert torch.allclose(attention(x, mask), expected, atol=1e-12)


@pytest.mark.parametrize("task_id", ["6", "8"])
def test_convolutions_replicate_the_edges_and_the_first_frame(task_id):
    conv = wide(model_of(tiny(task_id))).conv_in
    x = torch.randn(1, 3, 2, 4, 5, dtype=torch.float64)
    frames = [0, 0, 0, 1]
    rows, columns = [0, *range(4), 3], [0, *range(5), 4]
    padded = x[:, :, frames][:, :, :, rows][..., columns]
    expected = nn.functional.conv3d(padded, conv.conv.weight, conv.conv.bias)
    assert torch.allclose(conv(x), expected, atol=1e-12)


def test_the_encoder_halves_space_and_keeps_time():
    down = model_of(tiny("6")).down_blocks[0].downsamplers[0]
    assert down(torch.randn(1, 8, 5, 6, 8)).shape == (1, 8, 5, 3, 4)


def test_the_decoder_doubles_every_frame_in_space():
    up = model_of(tiny("8")).up_blocks[0].upsamplers[0]
    up.conv = nn.Identity()
    for frames in (1, 4):
        x = torch.randn(2, 8, frames, 3, 2)
        assert torch.equal(up(x), x.repeat_interleave(2, 3).repeat_interleave(2, 4))


def test_the_decoder_never_doubles_the_first_frame_in_time():
    """Visible with a time factor of two: the published factor is one."""
    up = model_of(tiny("8", upsample_time=2)).up_blocks[0].upsamplers[0]
    up.conv = nn.Identity()
    x = torch.arange(4.0).reshape(1, 1, 4, 1, 1)
    assert up(x)[0, 0, :, 0, 0].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert up(x[:, :, :1]).shape[2] == 1


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
