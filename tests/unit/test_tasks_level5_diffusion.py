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


def wide(value):
    """Floating tensors, and what modules hold, in float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) else value


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
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("task_id", TINY)
def test_nothing_global_is_changed(task_id):
    loaded = tiny(task_id)
    # By hand: the loader puts back what a task changes.
    model = loaded.model_class(*loaded.namespace["get_init_inputs"]()).eval()
    model(*loaded.namespace["get_inputs"]())
    changed = torch.get_default_dtype() != FP32
    torch.set_default_dtype(FP32)
    assert not changed


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
