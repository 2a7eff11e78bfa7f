"""The networks of level3-pike compute what plain functions of their weights, by name, compute.

In float64 and training mode: batch statistics keep the signal of deep networks alive, where
running ones of 0 and 1 let it vanish. Sizes are small; the operations are the published ones.
"""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = 1e-6
"""Of the output's deviation: float64 in another order stays below 1e-9, another network at 1."""


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: threads would wait for each other, and longer where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Weights:
    """A model's weights, applied by name."""

    def __init__(self, model):
        self.state = model.state_dict()

    def has(self, name):
        return any(key.startswith(f"{name}.") for key in self.state)

    def conv(self, name, x, stride=1):
        """A convolution that keeps the size but for its stride; grouped as its weight says."""
        weight, bias = self.state[f"{name}.weight"], self.state.get(f"{name}.bias")
        groups = x.shape[1] // weight.shape[1]
        return F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, groups=groups)

    def norm(self, name, x):
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
        scale, shift = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        x = (x - mean) / (variance + 1e-5).sqrt()
        return x * scale[:, None, None] + shift[:, None, None]

    def linear(self, name, x):
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]


def compare(task_id, reference, **shape_overrides):
    """The model's output, after a comparison with the reference's."""
    loaded = build(find_task(f"level3-pike/{task_id}", shape_overrides=shape_overrides))
    model = loaded.make_model().double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            # Shifts and scales of norms start at 0 and 1, where a missing one is not seen.
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.3, 0.3, len(parameter)).double())
        (x,) = loaded.inputs()
        wanted = reference(Weights(model), x.double())
        output = model(x.double())
    assert (output - wanted).abs().max() < TOLERANCE * wanted.std()
    return output


def relu6(x):
    return x.clamp(0, 6)


def pixels_mean(x):
    return x.mean(dim=(2, 3))


def test_wide_mlp():
    def reference(w, x):
        x = w.linear("network.0", x).relu()
        x = w.linear("network.2", x).relu()
        return w.linear("network.4", x)

    compare("2", reference)


def test_inception_concatenates_four_linear_branches():
    def reference(w, x):
        pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        return torch.cat(
            [
                w.conv("branch1x1", x),
                w.conv("branch3x3.1", w.conv("branch3x3.0", x)),
                w.conv("branch5x5.1", w.conv("branch5x5.0", x)),
                w.conv("branch_pool.1", pooled),
            ],
            dim=1,
        )

    compare("6", reference, batch_size=2, height=7, width=5)


def residual_network(depths, convolutions, strided):
    """ResNet: blocks of so many convolutions, of which the one numbered `strided` strides."""

    def reference(w, x):
        x = w.norm("bn1", w.conv("conv1", x, stride=2)).relu()
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage, depth in enumerate(depths, start=1):
            for index in range(depth):
                block, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
                y = x
                for n in range(1, convolutions + 1):
                    y = w.conv(f"{block}.conv{n}", y, stride if n == strided else 1)
                    y = w.norm(f"{block}.bn{n}", y)
                    y = y.relu() if n < convolutions else y
                if w.has(f"{block}.downsample"):
                    x = w.conv(f"{block}.downsample.0", x, stride)
                    x = w.norm(f"{block}.downsample.1", x)
                x = (y + x).relu()
        return w.linear("fc", pixels_mean(x))

    return reference


def test_resnet18():
    compare("9", residual_network([2, 2, 2, 2], 2, strided=1), image_size=64)


def test_resnet101_strides_in_the_3x3():
    reference = residual_network([3, 4, 23, 3], 3, strided=2)
    compare("10", reference, batch_size=2, image_size=64)


def dense_block(w, prefix, x, layers):
    for index in range(layers):
        y = w.norm(f"{prefix}layers.{index}.0", x).relu()
        x = torch.cat([x, w.conv(f"{prefix}layers.{index}.2", y)], dim=1)
    return x


def test_dense_block_puts_new_channels_behind_old_ones():
    sizes = {"batch_size": 2, "height": 6, "width": 5}
    compare("14", lambda w, x: dense_block(w, "", x, 6), **sizes)


@pytest.mark.parametrize(("task_id", "depths"), [("15", [6, 12, 24, 16]), ("16", [6, 12, 48, 32])])
def test_densenet(task_id, depths):
    def reference(w, x):
        x = w.norm("features.1", w.conv("features.0", x, stride=2)).relu()
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for index, layers in enumerate(depths):
            x = dense_block(w, f"dense_blocks.{index}.", x, layers)
            transition = f"transition_layers.{index}.transition"
            if w.has(transition):
                x = w.conv(f"{transition}.2", w.norm(f"{transition}.0", x).relu())
                x = F.avg_pool2d(x, 2)
        return w.linear("classifier", pixels_mean(w.norm("final_bn", x).relu()))

    compare(task_id, reference, batch_size=3, image_size=64)


def test_mobilenet_v1():
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]

    def reference(w, x):
        x = w.norm("model.0.1", w.conv("model.0.0", x, stride=2)).relu()
        for index, stride in enumerate(strides, start=1):
            x = w.norm(f"model.{index}.1", w.conv(f"model.{index}.0", x, stride)).relu()
            x = w.norm(f"model.{index}.4", w.conv(f"model.{index}.3", x)).relu()
        return w.linear("fc", pixels_mean(x))

    # Its average pooling of 7 x 7 wants the published size.
    compare("19", reference, batch_size=2)


def chain(w, x, prefix, stride):
    """Convolution and norm, with ReLU6 between such pairs, of which the depthwise one strides."""
    convolutions = [n for n in range(0, 9, 3) if w.has(f"{prefix}.{n}")]
    for n in convolutions:
        depthwise = n == convolutions[-2]
        x = w.conv(f"{prefix}.{n}", x, stride if depthwise else 1)
        x = w.norm(f"{prefix}.{n + 1}", x)
        x = x if n == convolutions[-1] else relu6(x)
    return x


def test_mobilenet_v2_adds_nothing():
    first_strides = [(1, 1), (2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1)]
    strides = [s if n == 0 else 1 for blocks, s in first_strides for n in range(blocks)]

    def reference(w, x):
        x = relu6(w.norm("features.1", w.conv("features.0", x, stride=2)))
        for index, stride in enumerate(strides, start=3):
            x = chain(w, x, f"features.{index}", stride)
        x = relu6(w.norm("features.21", w.conv("features.20", x)))
        return w.linear("classifier.1", pixels_mean(x))

    compare("20", reference, batch_size=2, image_size=64)


def mbconv(w, x):
    y = relu6(w.norm("expand_conv.1", w.conv("expand_conv.0", x)))
    y = relu6(w.norm("depthwise_conv.1", w.conv("depthwise_conv.0", y, stride=2)))
    return w.norm("project_conv.1", w.conv("project_conv.0", y))


def test_mbconv():
    compare("21", mbconv, batch_size=2, height=9, width=8)


def test_efficientnet_b0_skips_where_shapes_agree():
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 2, 1, 1, 1]
    skips = {2, 4, 6, 8, 10, 11}
    kernels = [3, 3, 3, 5, 5, 3, 3, 5, 5, 5, 5, 5, 3]

    def reference(w, x):
        x = w.norm("bn1", w.conv("conv1", x, stride=2)).relu()
        for index, stride in enumerate(strides):
            block = f"blocks.{index}.conv"
            assert w.state[f"{block}.{3 if index else 0}.weight"].shape[-1] == kernels[index]
            y = chain(w, x, block, stride)
            x = y + x if index in skips else y
        x = w.norm("bn2", w.conv("conv2", x)).relu()
        return w.linear("fc", pixels_mean(x))

    compare("22", reference, batch_size=2, image_size=64)


def test_efficientnet_b1_always_expands_and_adds_nothing():
    def reference(w, x):
        x = w.norm("bn1", w.conv("conv1", x, stride=2)).relu()
        for number, stride in enumerate([1, 2, 2, 2, 1, 2, 1], start=1):
            x = chain(w, x, f"mbconv{number}", stride)
        x = w.norm("bn2", w.conv("conv2", x)).relu()
        return w.linear("fc", pixels_mean(x))

    compare("23", reference, batch_size=2, image_size=64)


def test_efficientnet_b2_goes_on_with_the_excitation_instead_of_the_features():
    def reference(w, x):
        x = w.norm("bn1", w.conv("conv1", x, stride=2)).relu()
        for number, stride in enumerate([1, 2, 2, 2, 1], start=1):
            block = f"mbconv{number}"
            x = w.norm(f"{block}.1", w.conv(f"{block}.0", x)).relu()
            x = w.norm(f"{block}.4", w.conv(f"{block}.3", x, stride)).relu()
            x = x.mean(dim=(2, 3), keepdim=True)
            x = w.conv(f"{block}.9", w.conv(f"{block}.7", x).relu()).sigmoid()
            x = w.norm(f"{block}.12", w.conv(f"{block}.11", x))
        x = w.norm("bn_final", w.conv("conv_final", x)).relu()
        return w.linear("fc", pixels_mean(x))

    compare("24", reference, batch_size=3, image_size=32)


def shuffle_unit(w, prefix, x):
    y = w.norm(f"{prefix}bn1", w.conv(f"{prefix}conv1", x)).relu()
    y = w.norm(f"{prefix}bn2", w.conv(f"{prefix}conv2", y))
    third = y.shape[1] // 3
    # The first channel of each of the three groups, then the second of each, ...
    y = y[:, [group * third + each for each in range(third) for group in range(3)]]
    y = w.norm(f"{prefix}bn3", w.conv(f"{prefix}conv3", y)).relu()
    if w.has(f"{prefix}shortcut"):
        x = w.norm(f"{prefix}shortcut.1", w.conv(f"{prefix}shortcut.0", x))
    return y + x


def test_shuffle_unit_interleaves_groups_and_ends_in_a_sum():
    sizes = {"batch_size": 2, "height": 5, "width": 4}
    output = compare("25", lambda w, x: shuffle_unit(w, "", x), **sizes)
    assert output.min() < 0


def test_shufflenet_never_strides_after_its_stem():
    def reference(w, x):
        x = w.norm("bn1", w.conv("conv1", x, stride=2)).relu()
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage, units in [(2, 3), (3, 7), (4, 3)]:
            for index in range(units):
                x = shuffle_unit(w, f"stage{stage}.{index}.", x)
        x = w.norm("bn5", w.conv("conv5", x)).relu()
        return w.linear("fc", pixels_mean(x))

    compare("26", reference, batch_size=2, image_size=20)


def test_regnet():
    def reference(w, x):
        for stage in range(3):
            for layer in (0, 3):
                name = f"feature_extractor.{stage}"
                x = w.norm(f"{name}.{layer + 1}", w.conv(f"{name}.{layer}", x)).relu()
            x = F.max_pool2d(x, 2)
        return w.linear("fc", pixels_mean(x))

    compare("27", reference, batch_size=2, image_height=24, image_width=17)
