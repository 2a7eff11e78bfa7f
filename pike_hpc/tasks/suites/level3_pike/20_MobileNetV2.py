"""MobileNetV2.

Quirk: no residual connections: a block never adds its input, whatever its stride and widths.
"""

import torch
import torch.nn as nn

# expansion factor, output channels, number of blocks, stride of the first block
STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280


def conv_bn_relu6(in_channels, out_channels, kernel_size, stride=1, groups=1):
    return [
        nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            groups=groups,
            bias=False,
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(),
    ]


def bottleneck(in_channels, out_channels, stride, expansion):
    hidden = in_channels * expansion
    layers = []
    if expansion != 1:
        layers += conv_bn_relu6(in_channels, hidden, kernel_size=1)
    layers += conv_bn_relu6(hidden, hidden, kernel_size=3, stride=stride, groups=hidden)
    layers += [
        nn.Conv2d(hidden, out_channels, kernel_size=1, bias=False),
        nn.BatchNorm2d(out_channels),
    ]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layers = conv_bn_relu6(3, STEM_CHANNELS, kernel_size=3, stride=2)
        channels = STEM_CHANNELS
        for expansion, out_channels, blocks, first_stride in STAGES:
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                layers.append(bottleneck(channels, out_channels, stride, expansion))
                channels = out_channels
        layers += conv_bn_relu6(channels, HEAD_CHANNELS, kernel_size=1)
        layers.append(nn.AdaptiveAvgPool2d((1, 1)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(HEAD_CHANNELS, num_classes))
        self.initialise()

    def initialise(self):
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.features(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


batch_size = 10
image_size = 224
num_classes = 1000


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs():
    return [num_classes]
