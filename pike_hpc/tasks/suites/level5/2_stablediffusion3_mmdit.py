"""Stable Diffusion 3's denoiser (MMDiT): image and context streams in joint attention.

Quirk: the context is one matrix without a batch; the first modulation broadcasts it over the batch.
Quirk: the third input, the pooled text vector, is None: the model has no embedder for it.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
in_channels = 4
image_size = 256
context_tokens = 8
depth = 28
hidden_size = 64 * depth
num_heads = depth
mlp_size = 4 * hidden_size
patch_size = 16
pos_embed_max_size = 64
frequency_size = 256
max_period = 10000


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, hidden_size, patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class TimestepEmbedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(frequency_size, hidden_size),
            nn.SiLU(),
            nn.Linear(hidden_size, hidden_size),
        )

    def forward(self, t):
        half = frequency_size // 2
        steps = torch.arange(half, dtype=t.dtype, device=t.device)
        angles = t[:, None] * torch.exp(-math.log(max_period) * steps / half)
        embedding = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return self.mlp(embedding.to(self.mlp[0].weight.dtype))


class SelfAttention(nn.Module):
    def __init__(self, pre_only):
        super().__init__()
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        if not pre_only:
            self.proj = nn.Linear(hidden_size, hidden_size)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, mlp_size)
        self.fc2 = nn.Linear(mlp_size, hidden_size)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class StreamBlock(nn.Module):
    """One stream's half of a joint block; with pre_only it feeds the attention and ends there."""

    def __init__(self, pre_only=False):
        super().__init__()
        self.pre_only = pre_only
        self.modulations = 2 if pre_only else 6
        self.norm1 = nn.LayerNorm(hidden_size, eps=1e-6, elementwise_affine=False)
        self.attn = SelfAttention(pre_only)
        if not pre_only:
            self.norm2 = nn.LayerNorm(hidden_size, eps=1e-6, elementwise_affine=False)
            self.mlp = Mlp()
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(), nn.Linear(hidden_size, self.modulations * hidden_size)
        )

    def before_attention(self, x, c):
        shift, scale, *rest = self.adaLN_modulation(c).chunk(self.modulations, dim=1)
        return self.attn.qkv(modulate(self.norm1(x), shift, scale)), rest

    def after_attention(self, x, attention, rest):
        gate_attention, shift, scale, gate_mlp = rest
        x = x + gate_attention.unsqueeze(1) * self.attn.proj(attention)
        return x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift, scale))


class JointBlock(nn.Module):
    def __init__(self, pre_only):
        super().__init__()
        self.context_block = StreamBlock(pre_only)
        self.x_block = StreamBlock()

    def forward(self, context, x, c):
        context_qkv, context_rest = self.context_block.before_attention(context, c)
        x_qkv, x_rest = self.x_block.before_attention(x, c)
        qkv = torch.cat((context_qkv, x_qkv), dim=1)
        q, k, v = qkv.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        tokens = context_qkv.shape[1]
        x = self.x_block.after_attention(x, attention[:, tokens:], x_rest)
        if self.context_block.pre_only:
            return None, x
        return self.context_block.after_attention(context, attention[:, :tokens], context_rest), x


class FinalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_final = nn.LayerNorm(hidden_size, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(hidden_size, patch_size * patch_size * in_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 2 * hidden_size))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x_embedder = PatchEmbed()
        self.t_embedder = TimestepEmbedder()
        self.register_buffer("pos_embed", torch.zeros(1, pos_embed_max_size**2, hidden_size))
        self.joint_blocks = nn.ModuleList(JointBlock(i == depth - 1) for i in range(depth))
        self.final_layer = FinalLayer()

    def cropped_pos_embed(self, rows, columns):
        top = (pos_embed_max_size - rows) // 2
        left = (pos_embed_max_size - columns) // 2
        grid = self.pos_embed.unflatten(1, (pos_embed_max_size, pos_embed_max_size))
        return grid[:, top : top + rows, left : left + columns].flatten(1, 2)

    def unpatchify(self, x, rows, columns):
        x = x.unflatten(2, (patch_size, patch_size, in_channels))
        x = x.unflatten(1, (rows, columns)).permute(0, 5, 1, 3, 2, 4)
        return x.flatten(4, 5).flatten(2, 3)

    def forward(self, x, t, y, context):
        rows, columns = x.shape[2] // patch_size, x.shape[3] // patch_size
        x = self.x_embedder(x) + self.cropped_pos_embed(rows, columns)
        c = self.t_embedder(t)
        for block in self.joint_blocks:
            context, x = block(context, x, c)
        return self.unpatchify(self.final_layer(x, c), rows, columns)


def get_inputs():
    x = torch.randn(batch_size, in_channels, image_size, image_size)
    t = torch.full((batch_size,), 3.0)
    context = torch.randn(context_tokens, hidden_size)
    return [x, t, None, context]


def get_init_inputs():
    return []
