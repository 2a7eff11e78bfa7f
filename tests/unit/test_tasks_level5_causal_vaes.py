"""The VAEs of level5 look back in time only, and handle edges and the first frame as they must."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import LoadedTask, build  # noqa: E402

pytestmark = pytest.mark.torch

FP32 = torch.float32

TINY = {
    "6": {"batch_size": 2, "frames": 3, "height": 8, "width": 8, "channels": 8, "norm_groups": 4},
    "8": {"batch_size": 2, "frames": 3, "height": 4, "width": 4, "channels": 8, "norm_groups": 4},
}


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def tiny(task_id: str, **overrides: int) -> LoadedTask:
    return build(find_task(f"level5/{task_id}", shape_overrides=TINY[task_id] | overrides))


def model_of(loaded: LoadedTask) -> nn.Module:
    return loaded.make_model().eval().requires_grad_(False)


def wide(value):
    """Floating tensors, and what modules hold, in float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) else value


def frames_that_differ(a: torch.Tensor, b: torch.Tensor) -> list[bool]:
    return [
        not torch.allclose(x, y, atol=1e-6) for x, y in zip(a.unbind(2), b.unbind(2), strict=True)
    ]


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
def test_a_resnet_and_the_end_are_as_described(task_id):
    model = wide(model_of(tiny(task_id)))
    resnet = model.mid_block.resnets[0]
    for norm in (resnet.norm1, resnet.norm2, model.conv_norm_out):
        norm.weight.normal_()
        norm.bias.normal_()
    silu = nn.functional.silu
    x = torch.randn(2, 8, 3, 4, 4, dtype=torch.float64)
    h = resnet.conv2(silu(resnet.norm2(resnet.conv1(silu(resnet.norm1(x))))))
    assert torch.allclose(resnet(x), x + h, atol=1e-12)
    inputs = torch.randn(2, 3, 3, 4, 4, dtype=torch.float64)
    x = model.conv_in(inputs)
    mid = model.mid_block
    for block in (*model.down_blocks, mid) if task_id == "6" else (mid, *model.up_blocks):
        x = block(x)
    assert torch.allclose(model(inputs), model.conv_out(silu(model.conv_norm_out(x))), atol=1e-12)


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
