"""Product of two square matrices in float32."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, A, B):
        return A @ B


M = 4096
K = 4096
N = 4096


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
