"""Multi-head latent attention of DeepSeek-V3 without a cache: low-rank queries, keys and values.

Quirk: q, k and v are not transposed: attention runs, causally, over the heads of each token. Their
keys have the rotated part in common, so that it cancels in the softmax.
Quirk: the projections have biases; start_pos is not used, the rotations come as an input.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
seq_len = 1024
dim = 2048
n_heads = 16
q_lora_rank = 1536
kv_lora_rank = 512
qk_nope_head_dim = 128
qk_rope_head_dim = 64
v_head_dim = 128
max_seq_len = 16384
original_seq_len = 4096


@dataclass
class ModelArgs:
    dim: int = dim
    n_heads: int = n_heads
    q_lora_rank: int = q_lora_rank
    kv_lora_rank: int = kv_lora_rank
    qk_nope_head_dim: int = qk_nope_head_dim
    qk_rope_head_dim: int = qk_rope_head_dim
    v_head_dim: int = v_head_dim
    max_seq_len: int = max_seq_len
    original_seq_len: int = original_seq_len
    rope_theta: float = 10000.0
    rope_factor: float = 40
    beta_fast: int = 32
    beta_slow: int = 1
    mscale: float = 1.0


def precompute_freqs_cis(args):
    """Rotations exp(i * position * frequency), complex64 (max_seq_len, qk_rope_head_dim / 2).

    Beyond the original length the frequencies are YaRN's: fast ones stay, slow ones are divided
    by the factor, and between the two is a linear ramp.
    """
    d = args.qk_rope_head_dim
    freqs = 1.0 / (args.rope_theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    if args.max_seq_len > args.original_seq_len:

        def pair_that_turns(times):
            turns = args.original_seq_len / (times * 2 * math.pi)
            return d * math.log(turns) / (2 * math.log(args.rope_theta))

        low = max(math.floor(pair_that_turns(args.beta_fast)), 0)
        high = min(math.ceil(pair_that_turns(args.beta_slow)), d - 1)
        ramp = (torch.arange(d // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
        keep = 1 - ramp.clamp(0, 1)
        freqs = freqs / args.rope_factor * (1 - keep) + freqs * keep
    angles = torch.outer(torch.arange(args.max_seq_len, dtype=torch.float32), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, freqs_cis):
    """Turn neighbouring pairs of x (batch, position, head, pair * 2) as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2)


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads = args.n_heads
        self.kv_lora_rank = args.kv_lora_rank
        self.qk_nope_head_dim = args.qk_nope_head_dim
        self.qk_rope_head_dim = args.qk_rope_head_dim
        self.v_head_dim = args.v_head_dim
        qk_head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim

        self.wq_a = nn.Linear(args.dim, args.q_lora_rank)
        self.q_norm = nn.RMSNorm(args.q_lora_rank)
        self.wq_b = nn.Linear(args.q_lora_rank, args.n_heads * qk_head_dim)
        self.wkv_a = nn.Linear(args.dim, args.kv_lora_rank + args.qk_rope_head_dim)
        self.kv_norm = nn.RMSNorm(args.kv_lora_rank)
        kv_head_dim = args.qk_nope_head_dim + args.v_head_dim
        self.wkv_b = nn.Linear(args.kv_lora_rank, args.n_heads * kv_head_dim)
        self.wo = nn.Linear(args.n_heads * args.v_head_dim, args.dim)

        self.softmax_scale = qk_head_dim**-0.5
        if args.max_seq_len > args.original_seq_len:
            mscale = 0.1 * args.mscale * math.log(args.rope_factor) + 1.0
            self.softmax_scale *= mscale * mscale

    def forward(self, x, start_pos, freqs_cis):
        q = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self.n_heads, -1))
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q = torch.cat([q_nope, rotate(q_pe, freqs_cis)], dim=-1)

        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = rotate(k_pe.unsqueeze(2), freqs_cis).expand(-1, -1, self.n_heads, -1)
        kv = self.wkv_b(self.kv_norm(kv)).unflatten(-1, (self.n_heads, -1))
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        k = torch.cat([k_nope, k_pe], dim=-1)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale)
        return self.wo(y.flatten(2))


def get_inputs():
    x = torch.randn(batch_size, seq_len, dim)
    return [x, 0, precompute_freqs_cis(ModelArgs())[:seq_len]]


def get_init_inputs():
    return [ModelArgs()]
