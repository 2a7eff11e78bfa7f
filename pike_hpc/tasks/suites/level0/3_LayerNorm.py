"""Layer normalization over channels, height and width.

Quirk: inputs have mean 1000 and deviation 0.1, so that a variance by E[x^2] - E[x]^2 cancels.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x):
        return self.ln(x)


batch_size = 16
features = 64
dim1 = 256
dim2 = 256


def get_inputs():
    return [torch.randn(batch_size, features, dim1, dim2) * 0.1 + 1000]


def get_init_inputs():
    return [(features, dim1, dim2)]
