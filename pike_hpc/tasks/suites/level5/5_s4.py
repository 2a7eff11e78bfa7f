"""A diagonal S4 layer in its closed form: a long convolution by FFT, skip and initial state.

Quirk: the step is 1 / (length - 1), and the initial state's response carries the step as well.
"""

import math

import torch
import torch.nn as nn

batch_size = 8
num_hippos = 16
seq_len = 256
d_state = 64
channels = 1
# Decays run from 1 to nearly this, over the hippos.
decay_range = 100


class Model(nn.Module):
    def __init__(self, num_hippos):
        super().__init__()
        pairs = d_state // 2
        angles = math.pi * torch.arange(pairs)
        decays = torch.exp(torch.arange(num_hippos) / num_hippos * math.log(decay_range))
        self.theta = nn.Parameter(angles.repeat(num_hippos, 1))
        self.a = nn.Parameter(-decays.unsqueeze(1).repeat(1, pairs))
        self.D = nn.Parameter(torch.randn(channels, num_hippos))
        self.b = nn.Parameter(torch.randn(channels, num_hippos, pairs))
        self.c = nn.Parameter(torch.randn(channels, num_hippos, pairs))
        self.x0 = nn.Parameter(torch.randn(channels, num_hippos, pairs))

    def basis(self, length):
        """Every mode at every step: (hippos, pairs, length)."""
        dt = 1.0 / (length - 1)
        time = dt * torch.arange(length, device=self.a.device)
        decay = torch.exp(-self.a.abs().unsqueeze(-1) * time)
        return 2 * dt * decay * torch.cos(self.theta.unsqueeze(-1) * time)

    def forward(self, u):
        length = u.size(-1)
        base = self.basis(length)
        kernel = torch.einsum("khd,khd,hdl->khl", self.b, self.c, base)

        # Twice the length, so that the circular convolution does not wrap.
        spectrum = torch.fft.rfft(u, n=2 * length).unsqueeze(1)
        spectrum = spectrum * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]

        y = y + u.unsqueeze(1) * self.D.unsqueeze(-1)
        y = y + torch.einsum("khd,khd,hdl->khl", 2 * self.c, self.x0, base)
        return y.flatten(1, 2)


def get_inputs():
    return [torch.randn(batch_size, num_hippos, seq_len)]


def get_init_inputs():
    return [num_hippos]
