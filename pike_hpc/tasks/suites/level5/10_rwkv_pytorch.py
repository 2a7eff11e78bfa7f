"""RWKV 6 language model of one block: data-dependent token shift and decay, chunked WKV.

Quirk: the embedding is scaled by 0.01 just before its LayerNorm.
Quirk: decays per step are held above 0.005; attention within a chunk is multiplied in float64.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2
seq_len = 128
vocab_size = 16384
num_layers = 1
dim = 1024
head_size = 64
dim_ffn = 3584
shift_rank = 32
decay_rank = 64
chunk_len = 128

EMBEDDING_SCALE = 0.01
TIME_SCALE = 0.1
MIN_DECAY = 0.005
GROUP_NORM_EPS = 6.4e-4


def time_parameter(*shape):
    return nn.Parameter(torch.randn(*shape) * TIME_SCALE)


def shift_difference(x):
    """What to add to each token to get the one before it; before the first come zeros."""
    return F.pad(x, (0, 0, 1, -1)) - x


def wkv(r, k, v, decay, bonus, length):
    """Linear attention with a decay per step and channel, in chunks of `length` tokens.

    r, k, v, decay: (batch, heads, tokens, head size); bonus: (heads, head size), the weight of a
    token for itself. A token's own decay acts on what it leaves to later ones, not on itself.
    """
    batch, heads, tokens, size = r.shape
    r, k, v, decay = (x.unflatten(2, (-1, length)) for x in (r, k, v, decay))
    log_decay = decay.clamp(min=MIN_DECAY).float().log()
    through = log_decay.cumsum(dim=-2)
    before = F.pad(through, (0, 0, 1, -1))
    total = through[..., -1:, :]

    # Both factors stay in float64's range when they are measured from the middle of the chunk.
    middle = before[..., length // 2 : length // 2 + 1, :]
    queries = r * (before - middle).double().exp()
    keys = k * (middle - through).double().exp()
    scores = (queries @ keys.transpose(-2, -1)).to(r.dtype).tril(-1)
    own = (r * bonus[:, None, None, :] * k).sum(dim=-1)
    out = (scores + torch.diag_embed(own)) @ v

    # What every chunk adds to the state, and the state that each one begins with.
    added = (k * (total - through).exp().to(k.dtype)).transpose(-2, -1) @ v
    kept = total.exp().to(r.dtype).transpose(-2, -1)
    state = torch.zeros_like(added[:, :, 0])
    states = []
    for chunk in range(tokens // length):
        states.append(state)
        state = kept[:, :, chunk] * state + added[:, :, chunk]
    out = out + (r * before.exp().to(r.dtype)) @ torch.stack(states, dim=2)
    return out.view(batch, heads, tokens, size)


class TimeMix(nn.Module):
    def __init__(self, dim, head_size):
        super().__init__()
        self.heads = dim // head_size
        self.head_size = head_size
        self.time_maa_x = time_parameter(1, 1, dim)
        self.time_maa_w = time_parameter(1, 1, dim)
        self.time_maa_k = time_parameter(1, 1, dim)
        self.time_maa_v = time_parameter(1, 1, dim)
        self.time_maa_r = time_parameter(1, 1, dim)
        self.time_maa_g = time_parameter(1, 1, dim)
        self.time_maa_w1 = time_parameter(dim, 5 * shift_rank)
        self.time_maa_w2 = time_parameter(5, shift_rank, dim)
        self.time_decay = time_parameter(1, 1, dim)
        self.time_decay_w1 = time_parameter(dim, decay_rank)
        self.time_decay_w2 = time_parameter(decay_rank, dim)
        self.time_faaaa = time_parameter(self.heads, head_size)
        self.receptance = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.ln_x = nn.GroupNorm(self.heads, dim, eps=GROUP_NORM_EPS)

    def split_heads(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_size).transpose(1, 2)

    def forward(self, x):
        B, T, C = x.shape
        xx = shift_difference(x)
        mix = torch.tanh((x + xx * self.time_maa_x) @ self.time_maa_w1)
        mix = mix.view(B * T, 5, -1).transpose(0, 1)
        mw, mk, mv, mr, mg = torch.bmm(mix, self.time_maa_w2).view(5, B, T, C).unbind(0)
        xw = x + xx * (self.time_maa_w + mw)
        xk = x + xx * (self.time_maa_k + mk)
        xv = x + xx * (self.time_maa_v + mv)
        xr = x + xx * (self.time_maa_r + mr)
        xg = x + xx * (self.time_maa_g + mg)

        r = self.split_heads(self.receptance(xr))
        k = self.split_heads(self.key(xk))
        v = self.split_heads(self.value(xv))
        g = F.silu(self.gate(xg))
        w = -torch.exp(self.time_decay + torch.tanh(xw @ self.time_decay_w1) @ self.time_decay_w2)
        decay = self.split_heads(torch.exp(w))

        y = wkv(r, k, v, decay, self.time_faaaa, min(chunk_len, T))
        y = self.ln_x(y.transpose(1, 2).reshape(B * T, C)).view(B, T, C)
        return self.output(y * g)


class ChannelMix(nn.Module):
    def __init__(self, dim, dim_ffn):
        super().__init__()
        self.time_maa_k = time_parameter(1, 1, dim)
        self.time_maa_r = time_parameter(1, 1, dim)
        self.key = nn.Linear(dim, dim_ffn, bias=False)
        self.receptance = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim_ffn, dim, bias=False)

    def forward(self, x):
        xx = shift_difference(x)
        k = torch.relu(self.key(x + xx * self.time_maa_k)) ** 2
        r = torch.sigmoid(self.receptance(x + xx * self.time_maa_r))
        return r * self.value(k)


class Block(nn.Module):
    def __init__(self, dim, head_size, dim_ffn):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.att = TimeMix(dim, head_size)
        self.ffn = ChannelMix(dim, dim_ffn)

    def forward(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class Model(nn.Module):
    def __init__(self, vocab_size, num_layers, dim, head_size, dim_ffn):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim)
        self.ln0 = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(Block(dim, head_size, dim_ffn) for _ in range(num_layers))
        self.ln_out = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.ln0(self.emb(tokens) * EMBEDDING_SCALE)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_out(x))


def get_inputs():
    return [torch.randint(0, vocab_size, (batch_size, seq_len))]


def get_init_inputs():
    return [vocab_size, num_layers, dim, head_size, dim_ffn]
