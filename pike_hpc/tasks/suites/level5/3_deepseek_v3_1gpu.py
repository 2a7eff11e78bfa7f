"""A ten-layer DeepSeek-V3 in bfloat16: absorbed latent attention with caches, experts, a head.

Quirk: attention has no mask: every position sees all positions written so far, later ones too.
Quirk: the key-value up-projection is absorbed: queries are taken into the latent space, and the
attended latent vectors out of it, so that only latent vectors and rotated keys are cached.
Quirk: routing weights are softmax scores, not renormalised over the chosen experts.
Quirk: a Python loop over the experts waits for the number of tokens that each one got.
Quirk: only the last token goes through the head.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2
seq_len = 128
vocab_size = 32768
dim = 2048
inter_dim = 10944
moe_inter_dim = 1408
n_layers = 10
n_dense_layers = 1
n_heads = 16
n_routed_experts = 64
n_shared_experts = 2
n_activated_experts = 6
kv_lora_rank = 512
qk_nope_head_dim = 128
qk_rope_head_dim = 64
v_head_dim = 128
max_batch_size = 8
max_seq_len = 16384
original_seq_len = 4096
DTYPE = torch.bfloat16
EPS = 1e-6


@dataclass
class ModelArgs:
    max_batch_size: int = max_batch_size
    max_seq_len: int = max_seq_len
    vocab_size: int = vocab_size
    dim: int = dim
    inter_dim: int = inter_dim
    moe_inter_dim: int = moe_inter_dim
    n_layers: int = n_layers
    n_dense_layers: int = n_dense_layers
    n_heads: int = n_heads
    n_routed_experts: int = n_routed_experts
    n_shared_experts: int = n_shared_experts
    n_activated_experts: int = n_activated_experts
    q_lora_rank: int = 0  # queries come from one full projection
    kv_lora_rank: int = kv_lora_rank
    qk_nope_head_dim: int = qk_nope_head_dim
    qk_rope_head_dim: int = qk_rope_head_dim
    v_head_dim: int = v_head_dim
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
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2).type_as(x)


class Linear(nn.Module):
    """No bias; weights start as randn / sqrt(in_features)."""

    def __init__(self, in_features, out_features):
        super().__init__()
        weight = torch.randn(out_features, in_features, dtype=DTYPE)
        self.weight = nn.Parameter(weight * in_features**-0.5)

    def forward(self, x):
        return F.linear(x, self.weight)


class MLA(nn.Module):
    """Multi-head latent attention in its absorbed form."""

    def __init__(self, args):
        super().__init__()
        self.n_heads = args.n_heads
        self.kv_lora_rank = args.kv_lora_rank
        self.qk_nope_head_dim = args.qk_nope_head_dim
        self.qk_rope_head_dim = args.qk_rope_head_dim
        self.v_head_dim = args.v_head_dim
        qk_head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim

        self.wq = Linear(args.dim, args.n_heads * qk_head_dim)
        self.wkv_a = Linear(args.dim, args.kv_lora_rank + args.qk_rope_head_dim)
        self.kv_norm = nn.RMSNorm(args.kv_lora_rank, eps=EPS, dtype=DTYPE)
        kv_head_dim = args.qk_nope_head_dim + args.v_head_dim
        self.wkv_b = Linear(args.kv_lora_rank, args.n_heads * kv_head_dim)
        self.wo = Linear(args.n_heads * args.v_head_dim, args.dim)

        self.softmax_scale = qk_head_dim**-0.5
        if args.max_seq_len > args.original_seq_len:
            mscale = 0.1 * args.mscale * math.log(args.rope_factor) + 1.0
            self.softmax_scale *= mscale * mscale

        slots = (args.max_batch_size, args.max_seq_len)
        kv_cache = torch.zeros(*slots, args.kv_lora_rank, dtype=DTYPE)
        pe_cache = torch.zeros(*slots, args.qk_rope_head_dim, dtype=DTYPE)
        self.register_buffer("kv_cache", kv_cache, persistent=False)
        self.register_buffer("pe_cache", pe_cache, persistent=False)

    def forward(self, x, start_pos, freqs_cis):
        batch, length, _ = x.shape
        end_pos = start_pos + length
        q = self.wq(x).unflatten(-1, (self.n_heads, -1))
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_pe = rotate(q_pe, freqs_cis)

        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        self.kv_cache[:batch, start_pos:end_pos] = self.kv_norm(kv)
        self.pe_cache[:batch, start_pos:end_pos] = rotate(k_pe.unsqueeze(2), freqs_cis).squeeze(2)
        kv, k_pe = self.kv_cache[:batch, :end_pos], self.pe_cache[:batch, :end_pos]

        wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
        q_c = torch.einsum("bshd,hdc->bshc", q_nope, wkv_b[:, : self.qk_nope_head_dim])
        scores = torch.einsum("bshc,btc->bsht", q_c, kv)
        scores = scores + torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        scores = (scores * self.softmax_scale).softmax(dim=-1, dtype=torch.float32).type_as(x)

        y = torch.einsum("bsht,btc->bshc", scores, kv)
        y = torch.einsum("bshc,hdc->bshd", y, wkv_b[:, -self.v_head_dim :])
        return self.wo(y.flatten(2))


class SwiGLU(nn.Module):
    """A dense feed-forward layer, or one expert."""

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


class MoE(nn.Module):
    """Routed experts and shared ones."""

    def __init__(self, args):
        super().__init__()
        self.n_routed_experts = args.n_routed_experts
        self.gate = Gate(args)
        self.experts = nn.ModuleList(
            SwiGLU(args.dim, args.moe_inter_dim) for _ in range(args.n_routed_experts)
        )
        self.shared_experts = SwiGLU(args.dim, args.n_shared_experts * args.moe_inter_dim)

    def forward(self, x):
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


class Block(nn.Module):
    def __init__(self, layer, args):
        super().__init__()
        dense = layer < args.n_dense_layers
        self.attn = MLA(args)
        self.ffn = SwiGLU(args.dim, args.inter_dim) if dense else MoE(args)
        self.attn_norm = nn.RMSNorm(args.dim, eps=EPS, dtype=DTYPE)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=EPS, dtype=DTYPE)

    def forward(self, x, start_pos, freqs_cis):
        x = x + self.attn(self.attn_norm(x), start_pos, freqs_cis)
        return x + self.ffn(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab_size, args.dim, dtype=DTYPE)
        self.layers = nn.ModuleList(Block(layer, args) for layer in range(args.n_layers))
        self.norm = nn.RMSNorm(args.dim, eps=EPS, dtype=DTYPE)
        self.head = Linear(args.dim, args.vocab_size)
        self.register_buffer("freqs_cis", precompute_freqs_cis(args), persistent=False)

    # Without gradients, or the caches, written in place, would become part of a graph.
    @torch.no_grad()
    def forward(self, tokens, start_pos=0):
        x = self.embed(tokens)
        freqs_cis = self.freqs_cis[start_pos : start_pos + tokens.size(1)]
        for layer in self.layers:
            x = layer(x, start_pos, freqs_cis)
        return self.head(self.norm(x)[:, -1])


def get_inputs():
    return [torch.randint(0, vocab_size, (batch_size, seq_len))]


def get_init_inputs():
    return [ModelArgs()]
