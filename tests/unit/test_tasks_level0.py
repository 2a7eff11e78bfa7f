"""The tasks of level0 have the published shapes and compute what their names say."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.tasks import find_task, load_suite  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

IMAGES, SQUARE, LONG = (100, 3, 224, 224), (4096, 4096), (4096, 65536)
VOLUME = (16, 64, 256, 256)
PUBLISHED = {
    "1": ("Conv2D", [1000], [IMAGES], (100, 96, 55, 55), 34_944),
    "2": ("Conv2DReLUMaxPool", [1000], [IMAGES], (100, 96, 27, 27), 34_944),
    "3": ("LayerNorm", [(64, 256, 256)], [VOLUME], VOLUME, 8_388_608),
    "4": ("MatMulFP32", [], [SQUARE, SQUARE], SQUARE, 0),
    "5": ("Softmax", [], [LONG], LONG, 0),
}


def loaded(task_id, **shape_overrides):
    return build(find_task(f"level0/{task_id}", shape_overrides=shape_overrides))


def test_the_suite_holds_the_published_tasks_in_order():
    suite = load_suite("level0")
    assert [(task.id, task.name) for task in suite.tasks] == [
        (task_id, row[0]) for task_id, row in PUBLISHED.items()
    ]
    assert suite.refused == ()
    assert suite.level == 0


@pytest.mark.parametrize("task_id", PUBLISHED)
def test_shapes_dtypes_init_arguments_and_parameters(task_id):
    _, init_inputs, input_shapes, output_shape, parameters = PUBLISHED[task_id]
    task = loaded(task_id)
    assert task.init_inputs() == init_inputs
    with torch.device("meta"):
        model = task.make_model().eval()
        inputs = task.inputs()
        output = model(*inputs)
    assert [tuple(x.shape) for x in inputs] == input_shapes
    assert tuple(output.shape) == output_shape
    assert {x.dtype for x in [*inputs, output]} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == parameters


def convolved(model, x):
    """The convolution as a product of patches and weights."""
    weight, bias = model.state_dict().values()
    patches = torch.nn.functional.unfold(x, 11, stride=4, padding=2)
    side = (x.shape[-1] + 4 - 11) // 4 + 1
    return (weight.flatten(1) @ patches + bias[:, None]).unflatten(2, (side, side))


def test_the_convolution_has_stride_four_and_a_bias():
    task = loaded("1", batch_size=2, height=64, width=64)
    model, (x,) = task.make_model().eval(), task.inputs()
    with torch.no_grad():
        assert torch.allclose(model(x), convolved(model, x), atol=1e-5)


def test_pooling_comes_after_the_activation_and_overlaps():
    task = loaded("2", batch_size=2, height=64, width=64)
    model, (x,) = task.make_model().eval(), task.inputs()
    with torch.no_grad():
        windows = convolved(model, x).clamp(min=0).unfold(2, 3, 2).unfold(3, 3, 2)
        assert torch.allclose(model(x), windows.amax(dim=(-1, -2)), atol=1e-5)


def test_layer_norm_sees_a_mean_that_dwarfs_the_deviation():
    task = loaded("3", batch_size=2, features=8, dim1=32, dim2=32)
    model, (x,) = task.make_model().eval(), task.inputs()
    assert x.mean().item() == pytest.approx(1000, abs=0.01)
    assert (x.double() - 1000).std().item() == pytest.approx(0.1, rel=0.05)
    rows = x.double().flatten(1)
    centred = rows - rows.mean(dim=1, keepdim=True)
    wanted = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    with torch.no_grad():
        assert torch.allclose(model.double()(x.double()).flatten(1), wanted)


def test_the_product_is_first_times_second():
    task = loaded("4", M=3, K=5, N=4)
    a, b = task.inputs()
    wanted = (a[:, :, None] * b[None]).sum(dim=1)
    assert torch.allclose(task.make_model()(a, b), wanted, atol=1e-5)


def test_softmax_runs_along_rows_so_long_that_all_is_near_zero():
    task = loaded("5", batch_size=4)
    (x,) = task.inputs()
    y = task.make_model()(x)
    assert torch.allclose(y, x.exp() / x.exp().sum(dim=1, keepdim=True))
    assert 0 < y.max().item() < 0.01
