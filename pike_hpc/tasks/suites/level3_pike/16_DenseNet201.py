"""DenseNet-201 with ten classes.

Quirk: a dense layer is one 3x3 convolution, without the 1x1 bottleneck of the published network.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

BLOCK_LAYERS = [6, 12, 48, 32]
STEM_CHANNELS = 64


class DenseBlock(nn.Module):
    def __init__(self, num_layers, in_channels, growth_rate):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(in_channels + index * growth_rate),
                nn.ReLU(),
                nn.Conv2d(
                    in_channels + index * growth_rate,
                    growth_rate,
                    kernel_size=3,
                    padding=1,
                    bias=False,
                ),
                nn.Dropout(0.0),
            )
            for index in range(num_layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class TransitionLayer(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.transition = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(),
            nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False),
            nn.AvgPool2d(kernel_size=2, stride=2),
        )

    def forward(self, x):
        return self.transition(x)


class Model(nn.Module):
    def __init__(self, growth_rate, num_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, STEM_CHANNELS, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(STEM_CHANNELS),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.dense_blocks = nn.ModuleList()
        self.transition_layers = nn.ModuleList()
        channels = STEM_CHANNELS
        for index, num_layers in enumerate(BLOCK_LAYERS):
            if index > 0:
                self.transition_layers.append(TransitionLayer(channels, channels // 2))
                channels //= 2
            self.dense_blocks.append(DenseBlock(num_layers, channels, growth_rate))
            channels += num_layers * growth_rate
        self.final_bn = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x):
        x = self.features(x)
        for index, block in enumerate(self.dense_blocks):
            if index > 0:
                x = self.transition_layers[index - 1](x)
            x = block(x)
        x = F.relu(self.final_bn(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.classifier(x)


batch_size = 10
image_size = 224
growth_rate = 32
num_classes = 10


def get_inputs():
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs():
    return [growth_rate, num_classes]
