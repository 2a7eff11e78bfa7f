"""Mixture of experts of DeepSeek-V3 on a small batch, in bfloat16.

Quirk: the input is float32 and is cast to bfloat16 in forward; the output stays bfloat16.
Quirk: routing weights are softmax scores, not renormalised over the chosen experts; the router's
weights are unscaled normal numbers, so that one expert takes nearly all of a token's weight.
Quirk: a Python loop over the experts waits for the number of tokens that each one got.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 128
seq_len = 1
dim = 2048
moe_inter_dim = 1408
n_routed_experts = 64
n_shared_experts = 2
n_activated_experts = 6
DTYPE = torch.bfloat16


@dataclass
class ModelArgs:
    dim: int = dim
    moe_inter_dim: int = moe_inter_dim
    n_routed_experts: int = n_routed_experts
    n_shared_experts: int = n_shared_experts
    n_activated_experts: int = n_activated_experts


class Linear(nn.Module):
    """No bias; weights start as randn / sqrt(in_features)."""

    def __init__(self, in_features, out_features):
        super().__init__()
        weight = torch.randn(out_features, in_features, dtype=DTYPE)
        self.weight = nn.Parameter(weight * in_features**-0.5)

    def forward(self, x):
        return F.linear(x, self.weight)


class SwiGLU(nn.Module):
    """One expert."""

    def __init__(self, dim, inter_dim):
        super().__init__()
        self.w1 = Linear(dim, inter_dim)
        self.w2 = Linear(inter_dim, dim)
        self.w3 = Linear(dim, inter_dim)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Gate(nn.Module):
    """Each token's experts and their weights."""

    def __init__(self, args):
        super().__init__()
        self.topk = args.n_activated_experts
        self.weight = nn.Parameter(torch.randn(args.n_routed_experts, args.dim, dtype=DTYPE))

    def forward(self, x):
        scores = F.linear(x, self.weight).softmax(dim=-1, dtype=torch.float32)
        weights, indices = torch.topk(scores, self.topk, dim=-1)
        return weights.type_as(x), indices


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_routed_experts = args.n_routed_experts
        self.gate = Gate(args)
        self.experts = nn.ModuleList(
            SwiGLU(args.dim, args.moe_inter_dim) for _ in range(args.n_routed_experts)
        )
        self.shared_experts = SwiGLU(args.dim, args.n_shared_experts * args.moe_inter_dim)

    def forward(self, x):
        x = x.to(torch.bfloat16)
        shape = x.shape
        x = x.flatten(0, -2)
        weights, indices = self.gate(x)
        routed = torch.zeros_like(x)
        counts = torch.bincount(indices.flatten(), minlength=self.n_routed_experts).tolist()
        for i, expert in enumerate(self.experts):
            if counts[i] == 0:
                continue
            token, rank = torch.where(indices == i)
            routed[token] += expert(x[token]) * weights[token, rank, None]
        return (routed + self.shared_experts(x)).view(shape)


def get_inputs():
    return [torch.randn(batch_size, seq_len, dim)]


def get_init_inputs():
    return [ModelArgs()]
