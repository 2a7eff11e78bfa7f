"""The shipped tasks have the shapes, init arguments and parameter counts of the published ones."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.tasks import find_task, load_suite  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

IMAGES = (10, 3, 224, 224)
# id: name, init arguments, shapes of the inputs, shape of the output, parameters
PUBLISHED = {
    "1": ("MLP", [1000, [400, 800], 500], [(1, 1000)], (1, 500), 1_121_700),
    "2": ("ShallowWideMLP", [1000, [2000, 2000], 10], [(1, 1000)], (1, 10), 6_024_010),
    "4": ("LeNet5", [10], [(1, 1, 32, 32)], (1, 10), 61_706),
    "6": (
        "GoogleNetInceptionModule",
        [480, 192, 96, 208, 16, 48, 64],
        [(10, 480, 224, 224)],
        (10, 512, 224, 224),
        376_176,
    ),
    "8": ("ResNetBasicBlock", [3, 64, 1], [IMAGES], (10, 64, 224, 224), 39_168),
    "9": ("ResNet18", [1000], [(2, 3, 224, 224)], (2, 1000), 11_689_512),
    "10": ("ResNet101", [[3, 4, 23, 3], 1000], [IMAGES], (10, 1000), 44_549_160),
    "13": (
        "DenseNet121TransitionLayer",
        [32, 64],
        [(10, 32, 224, 224)],
        (10, 64, 112, 112),
        2_112,
    ),
    "14": (
        "DenseNet121DenseBlock",
        [6, 32, 32],
        [(10, 32, 224, 224)],
        (10, 224, 224, 224),
        194_880,
    ),
    "15": ("DenseNet121", [32, 10], [IMAGES], (10, 10), 9_854_346),
    "16": ("DenseNet201", [32, 10], [IMAGES], (10, 10), 30_064_778),
    "17": ("SqueezeNetFireModule", [3, 6, 64, 64], [IMAGES], (10, 128, 224, 224), 3_992),
    "19": ("MobileNetV1", [1000, 3, 1.0], [IMAGES], (10, 1000), 4_231_976),
    "20": ("MobileNetV2", [1000], [IMAGES], (10, 1000), 3_504_872),
    "21": (
        "EfficientNetMBConv",
        [112, 192, 5, 2, 6],
        [(10, 112, 224, 224)],
        (10, 192, 112, 112),
        224_160,
    ),
    "22": ("EfficientNetB0", [1000], [IMAGES], (10, 1000), 3_922_408),
    "23": ("EfficientNetB1", [1000], [(10, 3, 240, 240)], (10, 1000), 2_661_928),
    "24": ("EfficientNetB2", [1000], [(2, 3, 224, 224)], (2, 1000), 6_868_328),
    "25": (
        "ShuffleNetUnit",
        [240, 480, 3],
        [(10, 240, 224, 224)],
        (10, 480, 224, 224),
        147_480,
    ),
    "26": ("ShuffleNet", [1000], [IMAGES], (10, 1000), 3_338_524),
    "27": ("RegNet", [3, 3, [64, 128, 256], 10], [(8, 3, 224, 224)], (8, 10), 1_149_770),
    "33": ("VanillaRNN", [1024, 256, 128], [(8, 1024), (8, 256)], (8, 128), 360_832),
    "43": (
        "MinGPTCausalAttention",
        [768, 8, 0.0, 0.0, 1024],
        [(128, 512, 768)],
        (128, 512, 768),
        2_362_368,
    ),
}


def test_the_suite_holds_these_tasks_under_the_published_names():
    names = {task.id: task.name for task in load_suite("level3-pike").tasks}
    wanted = {task_id: row[0] for task_id, row in PUBLISHED.items()}
    assert {task_id: names.get(task_id) for task_id in wanted} == wanted


@pytest.mark.parametrize("task_id", PUBLISHED)
def test_shapes_dtypes_init_arguments_and_parameters(task_id):
    _, init_inputs, input_shapes, output_shape, parameters = PUBLISHED[task_id]
    loaded = build(find_task(f"level3-pike/{task_id}"))
    assert loaded.init_inputs() == init_inputs
    with torch.device("meta"):
        model = loaded.make_model().eval()
        inputs = loaded.inputs()
        output = model(*inputs)
    assert [tuple(x.shape) for x in inputs] == input_shapes
    assert tuple(output.shape) == output_shape
    assert {x.dtype for x in [*inputs, output]} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_rnn_draws_its_state_before_its_weights():
    loaded = build(find_task("level3-pike/33"))
    torch.manual_seed(1)
    hidden = torch.randn(8, 256)
    model = loaded.make_model(seed=1)
    assert torch.equal(model.hidden, hidden)
    assert list(model.state_dict()) == ["i2h.weight", "i2h.bias", "h2o.weight", "h2o.bias"]


def test_the_rnn_keeps_its_state_between_calls():
    loaded = build(find_task("level3-pike/33", shape_overrides={"batch_size": 2}))
    model = loaded.make_model()
    x, h0 = loaded.inputs()
    with torch.no_grad():
        first = model(x, h0)
        assert not torch.equal(model(x), first)
        assert torch.equal(model(x, h0), first)


def test_a_residual_block_draws_its_shortcut_first_and_registers_it_last():
    model = build(find_task("level3-pike/9")).make_model(seed=1)
    torch.manual_seed(1)
    shapes = [(3, 64, 7), *[(64, 64, 3)] * 4, (64, 128, 1), (64, 128, 3)]
    *_, shortcut, first = [torch.nn.Conv2d(*shape, bias=False).weight for shape in shapes]
    block = model.layer2[0]
    assert torch.equal(block.downsample[0].weight, shortcut)
    assert torch.equal(block.conv1.weight, first)
    names = [name for name, _ in block.named_children() if name != "relu"]
    assert names == ["conv1", "bn1", "conv2", "bn2", "downsample"]


def test_mobilenet_starts_as_described():
    model = build(find_task("level3-pike/20")).make_model()
    last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    assert last.bias.abs().max() == 0
    assert last.weight.std().item() == pytest.approx(0.01, rel=0.05)
    convs = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    # kaiming_normal over fan_out: the stem has 32 x 3 x 3 outputs a weight reaches.
    assert convs[0].weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.1)
    assert len(convs) == 52


def test_attention_is_causal():
    loaded = build(find_task("level3-pike/43", shape_overrides={"batch_size": 1, "seq_len": 8}))
    model, (x,) = loaded.make_model().eval(), loaded.inputs()
    changed = x.clone()
    changed[:, 5:] += 1
    with torch.no_grad():
        same = torch.isclose(model(x), model(changed)).all(dim=-1)[0]
    assert same.tolist() == [True] * 5 + [False] * 3
