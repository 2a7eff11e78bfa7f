"""Dense block of DenseNet-121: each layer sees the input and what all layers before it made.

Quirk: a layer is one 3x3 convolution, without the 1x1 bottleneck of the published network.
"""

import torch
import torch.nn as nn


def dense_layer(in_channels, growth_rate):
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        nn.ReLU(),
        nn.Conv2d(in_channels, growth_rate, kernel_size=3, padding=1, bias=False),
        nn.Dropout(0.0),
    )


class Model(nn.Module):
    def __init__(self, num_layers, num_input_features, growth_rate):
        super().__init__()
        self.layers = nn.ModuleList(
            dense_layer(num_input_features + index * growth_rate, growth_rate)
            for index in range(num_layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


batch_size = 10
num_layers = 6
num_input_features = 32
growth_rate = 32
height = 224
width = 224


def get_inputs():
    return [torch.randn(batch_size, num_input_features, height, width)]


def get_init_inputs():
    return [num_layers, num_input_features, growth_rate]
