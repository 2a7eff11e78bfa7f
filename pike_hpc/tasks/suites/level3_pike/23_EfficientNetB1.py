"""EfficientNet-B1, one block a stage.

Quirk: every block has an expanding convolution, also where it expands to as many channels.
Quirk: no skip connections, no squeeze-excitation, every depthwise kernel is 3x3.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

# input channels, output channels, stride, expansion
BLOCKS = [
    (32, 16, 1, 1),
    (16, 24, 2, 6),
    (24, 40, 2, 6),
    (40, 80, 2, 6),
    (80, 112, 1, 6),
    (112, 192, 2, 6),
    (192, 320, 1, 6),
]
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280


def mbconv(in_channels, out_channels, stride, expand_ratio):
    hidden = in_channels * expand_ratio
    return nn.Sequential(
        nn.Conv2d(in_channels, hidden, kernel_size=1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU6(),
        nn.Conv2d(
            hidden, hidden, kernel_size=3, stride=stride, padding=1, groups=hidden, bias=False
        ),
        nn.BatchNorm2d(hidden),
        nn.ReLU6(),
        nn.Conv2d(hidden, out_channels, kernel_size=1, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class Model(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        self.mbconv1 = mbconv(*BLOCKS[0])
        self.mbconv2 = mbconv(*BLOCKS[1])
        self.mbconv3 = mbconv(*BLOCKS[2])
        self.mbconv4 = mbconv(*BLOCKS[3])
        self.mbconv5 = mbconv(*BLOCKS[4])
        self.mbconv6 = mbconv(*BLOCKS[5])
        self.mbconv7 = mbconv(*BLOCKS[6])
        self.conv2 = nn.Conv2d(BLOCKS[-1][1], HEAD_CHANNELS, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD_CHANNELS)
        self.fc = nn.Linear(HEAD_CHANNELS, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.mbconv3(self.mbconv2(self.mbconv1(x)))
        x = self.mbconv7(self.mbconv6(self.mbconv5(self.mbconv4(x))))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.fc(x)


batch_size = 10
image_size = 240
num_classes = 1000


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs():
    return [num_classes]
