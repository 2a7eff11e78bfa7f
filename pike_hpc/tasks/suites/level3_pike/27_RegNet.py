"""RegNet-like network: stages of two convolutions and a pooling, ever wider."""

import torch
import torch.nn as nn


def make_stage(in_channels, out_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=2),
    )


class Model(nn.Module):
    def __init__(self, input_channels, stages, block_widths, output_classes):
        super().__init__()
        layers = []
        channels = input_channels
        for width in block_widths[:stages]:
            layers.append(make_stage(channels, width))
            channels = width
        self.feature_extractor = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, output_classes)

    def forward(self, x):
        x = self.feature_extractor(x)
        return self.fc(x.mean(dim=[2, 3]))


batch_size = 8
input_channels = 3
image_height = 224
image_width = 224
stages = 3
block_widths = [64, 128, 256]
output_classes = 10


def get_inputs():
    return [torch.randn(batch_size, input_channels, image_height, image_width)]


def get_init_inputs():
    return [input_channels, stages, block_widths, output_classes]
