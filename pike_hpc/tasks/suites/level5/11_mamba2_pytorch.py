"""A selective state-space (Mamba) language model of eight layers, scanned token by token.

Quirk: the decay is exp(-A) * delta, not exp(-A * delta).
Quirk: D is both the bias of delta and the skip; no norm before the head.
Quirk: the scan is a Python loop over the tokens.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2
seq_len = 128
vocab_size = 16384
num_layers = 8
dim = 1024
d_state = 16
delta_rank = 64
kernel_size = 4

EPS = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.g * x / (norm + EPS) * self.scale


class MambaBlock(nn.Module):
    def __init__(self, dim, d_state, delta_rank, kernel_size):
        super().__init__()
        self.in_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.s_B = nn.Linear(dim, d_state, bias=False)
        self.s_C = nn.Linear(dim, d_state, bias=False)
        self.s_D = nn.Sequential(
            nn.Linear(dim, delta_rank, bias=False),
            nn.Linear(delta_rank, dim, bias=False),
        )
        self.conv = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size - 1, groups=dim)
        self.A = nn.Parameter(torch.arange(1.0, d_state + 1.0).repeat(dim, 1))
        self.D = nn.Parameter(torch.ones(dim))

    def ssm(self, x):
        """The selective scan of (batch, tokens, channels)."""
        B = self.s_B(x)
        C = self.s_C(x)
        delta = F.softplus(self.D + self.s_D(x))
        # (batch, tokens, channels, state)
        A_bar = torch.exp(-self.A) * delta.unsqueeze(-1)
        X_bar = B.unsqueeze(-2) * delta.unsqueeze(-1) * x.unsqueeze(-1)

        h = torch.zeros_like(X_bar[:, 0])
        states = []
        for t in range(x.shape[1]):
            h = A_bar[:, t] * h + X_bar[:, t]
            states.append(h)
        states = torch.stack(states, dim=1)
        return torch.einsum("blds,bls->bld", states, C) + self.D * x

    def forward(self, x):
        length = x.shape[1]
        a, gate = self.in_proj(x).chunk(2, dim=-1)
        a = self.conv(a.transpose(1, 2))[..., :length].transpose(1, 2)
        y = self.ssm(F.silu(a)) * F.silu(gate)
        return self.out_proj(y)


class Model(nn.Module):
    def __init__(self, vocab_size, num_layers, dim, d_state, delta_rank, kernel_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(
            nn.ModuleList([MambaBlock(dim, d_state, delta_rank, kernel_size), RMSNorm(dim)])
            for _ in range(num_layers)
        )
        self.head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for mamba, norm in self.layers:
            x = x + mamba(norm(x))
        return self.head(x)


def get_inputs():
    return [torch.randint(0, vocab_size, (batch_size, seq_len))]


def get_init_inputs():
    return [vocab_size, num_layers, dim, d_state, delta_rank, kernel_size]
