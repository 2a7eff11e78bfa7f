"""One decoding step of an eight-layer Llama 2 in float32 over full key and value caches.

Quirk: attention has no mask, in the prompt neither: its positions see each other both ways.
Quirk: the constructor fills the caches from a prompt among its arguments; the caches have room
for max_batch_size rows, of which batch_size are used.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
prompt_len = 4096
dim = 2048
n_layers = 8
n_heads = 16
vocab_size = 32768
multiple_of = 256
max_batch_size = 32
max_seq_len = prompt_len + 1


@dataclass
class ModelArgs:
    dim: int = dim
    n_layers: int = n_layers
    n_heads: int = n_heads
    vocab_size: int = vocab_size
    multiple_of: int = multiple_of
    norm_eps: float = 1e-5
    max_batch_size: int = max_batch_size
    max_seq_len: int = max_seq_len


def precompute_freqs_cis(head_dim, length, theta=10000.0):
    """Rotations exp(i * position * frequency), complex64 (length, head_dim / 2)."""
    freqs = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    angles = torch.outer(torch.arange(length, dtype=torch.float32), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, freqs_cis):
    """Turn neighbouring pairs of x (batch, position, head, pair * 2) as complex numbers."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2).type_as(x)


class RMSNorm(nn.Module):
    """Root mean square norm, in float32 inside."""

    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads = args.n_heads
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)
        head_dim = args.dim // args.n_heads
        shape = (args.max_batch_size, args.max_seq_len, args.n_heads, head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def forward(self, x, start_pos, freqs_cis, first_row):
        batch, length, _ = x.shape
        rows, end_pos = slice(first_row, first_row + batch), start_pos + length
        q = rotate(self.wq(x).unflatten(-1, (self.n_heads, -1)), freqs_cis)
        k = rotate(self.wk(x).unflatten(-1, (self.n_heads, -1)), freqs_cis)
        self.cache_k[rows, start_pos:end_pos] = k
        self.cache_v[rows, start_pos:end_pos] = self.wv(x).unflatten(-1, (self.n_heads, -1))

        keys = self.cache_k[rows, :end_pos].transpose(1, 2)
        values = self.cache_v[rows, :end_pos].transpose(1, 2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU of two thirds of 4 * dim, rounded up to a multiple."""

    def __init__(self, args):
        super().__init__()
        hidden = 2 * 4 * args.dim // 3
        hidden = -(-hidden // args.multiple_of) * args.multiple_of
        self.w1 = nn.Linear(args.dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def forward(self, x, start_pos, freqs_cis, first_row):
        x = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, first_row)
        return x + self.feed_forward(self.ffn_norm(x))


def refill(model, incompatible_keys):
    model.prefill()


class Model(nn.Module):
    def __init__(self, args, tokens, start_pos):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        freqs_cis = precompute_freqs_cis(args.dim // args.n_heads, 2 * args.max_seq_len)
        self.register_buffer("freqs_cis", freqs_cis, persistent=False)

        # The prompt is kept, so that the caches can follow the weights.
        self.register_buffer("prompt", tokens, persistent=False)
        self.prompt_start = start_pos
        self.register_load_state_dict_post_hook(refill)
        self.prefill()

    @torch.no_grad()
    def prefill(self):
        """Fill the caches from the prompt with the present weights, a row at a time."""
        tokens = self.prompt.to(self.output.weight.device)
        for row in range(tokens.size(0)):
            self.hidden(tokens[row : row + 1], self.prompt_start, first_row=row)

    def hidden(self, tokens, start_pos, first_row=0):
        """What the last layer gives; tokens are the batch's rows from first_row on."""
        x = self.tok_embeddings(tokens)
        freqs_cis = self.freqs_cis[start_pos : start_pos + tokens.size(1)]
        for layer in self.layers:
            x = layer(x, start_pos, freqs_cis, first_row)
        return x

    @torch.no_grad()
    def forward(self, tokens, start_pos):
        return self.output(self.norm(self.hidden(tokens, start_pos)))


def get_inputs():
    return [torch.randint(0, vocab_size, (batch_size, 1)), prompt_len]


def get_init_inputs():
    return [ModelArgs(), torch.randint(0, vocab_size, (batch_size, prompt_len)), 0]
