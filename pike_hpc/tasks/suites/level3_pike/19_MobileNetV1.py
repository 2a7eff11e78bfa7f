"""MobileNetV1: depthwise separable convolutions."""

import torch
import torch.nn as nn

STEM_CHANNELS = 32
# output channels, stride of the depthwise convolution
BLOCKS = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
]


def conv_bn_relu(in_channels, out_channels, kernel_size, stride=1, groups=1):
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
        nn.ReLU(),
    ]


def depthwise_separable(in_channels, out_channels, stride):
    depthwise = conv_bn_relu(in_channels, in_channels, 3, stride=stride, groups=in_channels)
    pointwise = conv_bn_relu(in_channels, out_channels, 1)
    return nn.Sequential(*depthwise, *pointwise)


class Model(nn.Module):
    def __init__(self, num_classes, input_channels, alpha):
        super().__init__()
        channels = int(STEM_CHANNELS * alpha)
        layers = [nn.Sequential(*conv_bn_relu(input_channels, channels, 3, stride=2))]
        for full_width, stride in BLOCKS:
            out_channels = int(full_width * alpha)
            layers.append(depthwise_separable(channels, out_channels, stride))
            channels = out_channels
        layers.append(nn.AvgPool2d(kernel_size=7))
        self.model = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.model(x), 1))


batch_size = 10
input_channels = 3
height = 224
width = 224
num_classes = 1000
alpha = 1.0


def get_inputs():
    return [torch.randn(batch_size, input_channels, height, width)]


def get_init_inputs():
    return [num_classes, input_channels, alpha]
