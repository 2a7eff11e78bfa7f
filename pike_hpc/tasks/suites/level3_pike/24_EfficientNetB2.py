"""EfficientNet-B2, one block a stage.

Quirk: a block's squeeze-excitation replaces the features instead of scaling them, so that all
that follows the first block's depthwise convolution runs on one pixel.
Quirk: no skip connections.
"""

import torch
import torch.nn as nn

# input channels, output channels, stride, expansion
BLOCKS = [
    (32, 96, 1, 3),
    (96, 144, 2, 6),
    (144, 192, 2, 6),
    (192, 288, 2, 6),
    (288, 384, 1, 6),
]
STEM_CHANNELS = 32
HEAD_CHANNELS = 1408


def mbconv(in_channels, out_channels, stride, expand_ratio):
    hidden = in_channels * expand_ratio
    return nn.Sequential(
        nn.Conv2d(in_channels, hidden, kernel_size=1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.Conv2d(
            hidden, hidden, kernel_size=3, stride=stride, padding=1, groups=hidden, bias=False
        ),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Conv2d(hidden, hidden // 4, kernel_size=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(hidden // 4, hidden, kernel_size=1, bias=False),
        nn.Sigmoid(),
        nn.Conv2d(hidden, out_channels, kernel_size=1, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class Model(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        self.relu = nn.ReLU()
        self.mbconv1 = mbconv(*BLOCKS[0])
        self.mbconv2 = mbconv(*BLOCKS[1])
        self.mbconv3 = mbconv(*BLOCKS[2])
        self.mbconv4 = mbconv(*BLOCKS[3])
        self.mbconv5 = mbconv(*BLOCKS[4])
        self.conv_final = nn.Conv2d(BLOCKS[-1][1], HEAD_CHANNELS, kernel_size=1, bias=False)
        self.bn_final = nn.BatchNorm2d(HEAD_CHANNELS)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(HEAD_CHANNELS, num_classes)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.mbconv3(self.mbconv2(self.mbconv1(x)))
        x = self.mbconv5(self.mbconv4(x))
        x = self.relu(self.bn_final(self.conv_final(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


batch_size = 2
image_size = 224
num_classes = 1000


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs():
    return [num_classes]
