"""Swin Transformer V2 (tiny): windowed cosine attention, continuous position bias, res-post-norm.

Quirk: scores are cosines times a learned factor of at most 100, not divided by sqrt(d).
Quirk: the norms come after attention and MLP, inside the residual branch.
Quirk: the position bias is computed by a small MLP in every forward.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 10
image_size = 224
patch_size = 4
in_channels = 3
num_classes = 1000
embed_dim = 96
window_size = 7
mlp_ratio = 4
bias_hidden = 512

DEPTHS = (2, 2, 6, 2)
NUM_HEADS = (3, 6, 12, 24)


def window_partition(x, window):
    """(B, H, W, C) to (B * windows, window, window, C)."""
    B, H, W, C = x.shape
    x = x.view(B, H // window, window, W // window, window, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window, window, C)


def window_reverse(windows, window, H, W):
    """(B * windows, window, window, C) to (B, H, W, C)."""
    C = windows.shape[-1]
    x = windows.view(-1, H // window, W // window, window, window, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, H, W, C)


def relative_coords(window):
    """Log-spaced offsets between two positions of a window: (1, 2w - 1, 2w - 1, 2)."""
    offsets = torch.arange(1.0 - window, float(window))
    table = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1).unsqueeze(0)
    table = table / (window - 1) * 8
    return torch.sign(table) * torch.log2(torch.abs(table) + 1.0) / math.log2(8)


def relative_index(window):
    """For each pair of positions, its row in the flattened table of offsets."""
    line = torch.arange(window)
    positions = torch.stack(torch.meshgrid(line, line, indexing="ij")).flatten(1)
    offset = positions[:, :, None] - positions[:, None, :] + window - 1
    return offset[0] * (2 * window - 1) + offset[1]


def shift_mask(resolution, window, shift):
    """-100 between positions that only the cyclic shift brought together, else 0."""
    # Along either axis: whole windows, then the two parts that share the last one.
    line = torch.arange(resolution)
    region = (line >= resolution - window).long() + (line >= resolution - shift).long()
    regions = (3 * region[:, None] + region[None, :]).view(1, resolution, resolution, 1)
    regions = window_partition(regions, window).view(-1, window * window)
    apart = regions.unsqueeze(1) != regions.unsqueeze(2)
    return torch.zeros(apart.shape).masked_fill(apart, -100.0)


class PatchEmbed(nn.Module):
    def __init__(self, patch, channels, dim):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class WindowAttention(nn.Module):
    def __init__(self, dim, window, heads):
        super().__init__()
        self.heads = heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, bias_hidden),
            nn.ReLU(inplace=True),
            nn.Linear(bias_hidden, heads, bias=False),
        )
        self.register_buffer("relative_coords_table", relative_coords(window))
        self.register_buffer("relative_position_index", relative_index(window))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def position_bias(self):
        """(heads, positions, positions), between 0 and 16."""
        positions = self.relative_position_index.shape[0]
        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.heads)
        bias = table[self.relative_position_index.view(-1)]
        bias = bias.view(positions, positions, self.heads).permute(2, 0, 1).contiguous()
        return 16 * torch.sigmoid(bias)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
        attn = attn + self.position_bias().unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(B // windows, windows, self.heads, N, N)
            attn = (attn + mask.unsqueeze(1).unsqueeze(0)).view(B, self.heads, N, N)
        attn = self.softmax(attn)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class SwinTransformerBlock(nn.Module):
    def __init__(self, dim, resolution, heads, window, shift):
        super().__init__()
        if resolution <= window:
            window, shift = resolution, 0
        self.resolution = resolution
        self.window = window
        self.shift = shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim * mlp_ratio)
        mask = shift_mask(resolution, window, shift) if shift else None
        self.register_buffer("attn_mask", mask)

    def attend(self, x):
        B, H, W, C = x.shape
        if self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = window_partition(x, self.window).view(-1, self.window * self.window, C)
        windows = self.attn(windows, self.attn_mask)
        x = window_reverse(windows.view(-1, self.window, self.window, C), self.window, H, W)
        if self.shift:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        return x

    def forward(self, x):
        B, L, C = x.shape
        y = self.attend(x.view(B, self.resolution, self.resolution, C)).view(B, L, C)
        x = x + self.norm1(y)
        return x + self.norm2(self.mlp(x))


class PatchMerging(nn.Module):
    def __init__(self, dim, resolution):
        super().__init__()
        self.resolution = resolution
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(2 * dim)

    def forward(self, x):
        B, _, C = x.shape
        x = x.view(B, self.resolution, self.resolution, C)
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        x = torch.cat(corners, -1).view(B, -1, 4 * C)
        return self.norm(self.reduction(x))


class BasicLayer(nn.Module):
    def __init__(self, dim, resolution, depth, heads, merge):
        super().__init__()
        self.blocks = nn.ModuleList(
            SwinTransformerBlock(dim, resolution, heads, window_size, (i % 2) * (window_size // 2))
            for i in range(depth)
        )
        self.downsample = PatchMerging(dim, resolution) if merge else None

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = PatchEmbed(patch_size, in_channels, embed_dim)
        self.layers = nn.ModuleList()
        last = len(DEPTHS) - 1
        for stage, (depth, heads) in enumerate(zip(DEPTHS, NUM_HEADS)):
            dim = embed_dim * 2**stage
            resolution = image_size // patch_size // 2**stage
            self.layers.append(BasicLayer(dim, resolution, depth, heads, merge=stage < last))
        self.norm = nn.LayerNorm(embed_dim * 2**last)
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(embed_dim * 2**last, num_classes)

    def forward(self, x):
        x = self.patch_embed(x)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        x = torch.flatten(self.avgpool(x.transpose(1, 2)), 1)
        return self.head(x)


def get_inputs():
    return [torch.randn(batch_size, in_channels, image_size, image_size)]


def get_init_inputs():
    return []
