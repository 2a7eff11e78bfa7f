"""ShuffleNet with three groups.

Quirk: every unit has stride 1, so that all stages run at the resolution of the stem's output.
Quirk: a unit that widens adds a projected input, where the published one concatenates.
Quirk: the shortcut is added after a unit's last activation, and none follows the sum.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUPS = 3
STEM_CHANNELS = 24
HEAD_CHANNELS = 1024
# output channels, number of units
STAGES = [(240, 3), (480, 7), (960, 3)]


class ChannelShuffle(nn.Module):
    """Sends channel j of group i to place i of the j-th run of `groups` channels."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


class ShuffleNetUnit(nn.Module):
    def __init__(self, in_channels, out_channels, groups):
        super().__init__()
        mid = out_channels // 4
        self.conv1 = nn.Conv2d(in_channels, mid, kernel_size=1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(mid)
        self.conv2 = nn.Conv2d(mid, mid, kernel_size=3, padding=1, groups=mid, bias=False)
        self.bn2 = nn.BatchNorm2d(mid)
        self.conv3 = nn.Conv2d(mid, out_channels, kernel_size=1, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shuffle = ChannelShuffle(groups)
        self.shortcut = nn.Sequential()
        if in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.shuffle(self.bn2(self.conv2(y)))
        y = F.relu(self.bn3(self.conv3(y)))
        return y + self.shortcut(x)


def make_stage(in_channels, out_channels, units):
    stage = [ShuffleNetUnit(in_channels, out_channels, GROUPS)]
    for _ in range(1, units):
        stage.append(ShuffleNetUnit(out_channels, out_channels, GROUPS))
    return nn.Sequential(*stage)


class Model(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.stage2 = make_stage(STEM_CHANNELS, *STAGES[0])
        self.stage3 = make_stage(STAGES[0][0], *STAGES[1])
        self.stage4 = make_stage(STAGES[1][0], *STAGES[2])
        self.conv5 = nn.Conv2d(STAGES[2][0], HEAD_CHANNELS, kernel_size=1, bias=False)
        self.bn5 = nn.BatchNorm2d(HEAD_CHANNELS)
        self.fc = nn.Linear(HEAD_CHANNELS, num_classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.stage4(self.stage3(self.stage2(x)))
        x = F.relu(self.bn5(self.conv5(x)))
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.fc(x)


batch_size = 10
image_size = 224
num_classes = 1000


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs():
    return [num_classes]
