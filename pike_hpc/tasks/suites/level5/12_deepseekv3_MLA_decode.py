"""One decoding step of DeepSeek-V3's latent attention over full key and value caches.

Quirk: q, k and v are not transposed: the one new token's 16 head queries are broadcast against
the 16 heads of every cached position, so the output has a row for each position. The heads' keys
have the rotated part in common, so that it cancels in the softmax.
Quirk: the step is at position prompt_len, but its rotation is that of position 0.
Quirk: the constructor fills the caches from a prompt among its arguments; the context is shorter
than the original one, so rope is plain and the softmax scale has no YaRN factor.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2
prompt_len = 4096
dim = 2048
n_heads = 16
q_lora_rank = 1536
kv_lora_rank = 512
qk_nope_head_dim = 128
qk_rope_head_dim = 64
v_head_dim = 128
max_batch_size = 128
max_seq_len = prompt_len + 1


@dataclass
class ModelArgs:
    max_batch_size: int = max_batch_size
    max_seq_len: int = max_seq_len
    dim: int = dim
    n_heads: int = n_heads
    q_lora_rank: int = q_lora_rank
    kv_lora_rank: int = kv_lora_rank
    qk_nope_head_dim: int = qk_nope_head_dim
    qk_rope_head_dim: int = qk_rope_head_dim
    v_head_dim: int = v_head_dim
    rope_theta: float = 10000.0


def precompute_freqs_cis(args):
    """Rotations exp(i * position * frequency), complex64 (max_seq_len, qk_rope_head_dim / 2)."""
    d = args.qk_rope_head_dim
    freqs = 1.0 / (args.rope_theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    angles = torch.outer(torch.arange(args.max_seq_len, dtype=torch.float32), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, freqs_cis):
    """Turn neighbouring pairs of x (batch, position, head, pair * 2) as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2)


def refill(model, incompatible_keys):
    model.prefill()


class Model(nn.Module):
    def __init__(self, args, x, start_pos, freqs_cis):
        super().__init__()
        self.n_heads = args.n_heads
        self.kv_lora_rank = args.kv_lora_rank
        self.qk_nope_head_dim = args.qk_nope_head_dim
        self.qk_rope_head_dim = args.qk_rope_head_dim
        self.v_head_dim = args.v_head_dim
        qk_head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim
        self.softmax_scale = qk_head_dim**-0.5

        self.wq_a = nn.Linear(args.dim, args.q_lora_rank)
        self.q_norm = nn.RMSNorm(args.q_lora_rank)
        self.wq_b = nn.Linear(args.q_lora_rank, args.n_heads * qk_head_dim)
        self.wkv_a = nn.Linear(args.dim, args.kv_lora_rank + args.qk_rope_head_dim)
        self.kv_norm = nn.RMSNorm(args.kv_lora_rank)
        kv_head_dim = args.qk_nope_head_dim + args.v_head_dim
        self.wkv_b = nn.Linear(args.kv_lora_rank, args.n_heads * kv_head_dim)
        self.wo = nn.Linear(args.n_heads * args.v_head_dim, args.dim)

        slots = (args.max_batch_size, args.max_seq_len, args.n_heads)
        self.register_buffer("k_cache", torch.zeros(*slots, qk_head_dim), persistent=False)
        self.register_buffer("v_cache", torch.zeros(*slots, args.v_head_dim), persistent=False)

        # The prompt is kept, so that the caches can follow the weights.
        self.register_buffer("prompt", x, persistent=False)
        self.register_buffer("prompt_freqs_cis", freqs_cis, persistent=False)
        self.prompt_start = start_pos
        self.register_load_state_dict_post_hook(refill)
        self.prefill()

    @torch.no_grad()
    def prefill(self):
        """Fill the caches from the prompt with the present weights."""
        x = self.prompt.to(self.wo.weight)
        self.remember(x, self.prompt_start, self.prompt_freqs_cis.to(x.device))

    def remember(self, x, start_pos, freqs_cis):
        """Write the keys and values of x (batch, position, dim) from start_pos on."""
        batch, length, _ = x.shape
        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = rotate(k_pe.unsqueeze(2), freqs_cis).expand(-1, -1, self.n_heads, -1)
        kv = self.wkv_b(self.kv_norm(kv)).unflatten(-1, (self.n_heads, -1))
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        end_pos = start_pos + length
        self.k_cache[:batch, start_pos:end_pos] = torch.cat([k_nope, k_pe], dim=-1)
        self.v_cache[:batch, start_pos:end_pos] = v

    @torch.no_grad()
    def forward(self, x, start_pos, freqs_cis):
        batch, length, _ = x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self.n_heads, -1))
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q = torch.cat([q_nope, rotate(q_pe, freqs_cis)], dim=-1)

        self.remember(x, start_pos, freqs_cis)
        k = self.k_cache[:batch, : start_pos + length]
        v = self.v_cache[:batch, : start_pos + length]
        y = F.scaled_dot_product_attention(q, k, v, scale=self.softmax_scale)
        return self.wo(y.flatten(2))


def get_inputs():
    x = torch.randn(batch_size, 1, dim)
    return [x, prompt_len, precompute_freqs_cis(ModelArgs())[:1]]


def get_init_inputs():
    args = ModelArgs()
    x = torch.randn(batch_size, prompt_len, dim)
    return [args, x, 0, precompute_freqs_cis(args)[:prompt_len]]
