"""Swin-MLP (tiny): windows are mixed by a grouped 1x1 convolution over positions, not by attention.

Quirk: shifted blocks pad the map with zeros (4 left and top, 3 right and bottom), no cyclic roll.
"""

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


class SwinMLPBlock(nn.Module):
    def __init__(self, dim, resolution, heads, window, shift):
        super().__init__()
        if resolution <= window:
            window, shift = resolution, 0
        self.resolution = resolution
        self.heads = heads
        self.window = window
        # left and top, right and bottom
        self.padding = (window - shift, shift) if shift else (0, 0)
        self.norm1 = nn.LayerNorm(dim)
        positions = heads * window * window
        self.spatial_mlp = nn.Conv1d(positions, positions, kernel_size=1, groups=heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim * mlp_ratio)

    def mix(self, x):
        """Mix the positions of each window, each head with weights of its own."""
        B, H, W, C = x.shape
        before, after = self.padding
        area = self.window * self.window
        x = F.pad(x, (0, 0, before, after, before, after))
        padded_H, padded_W = x.shape[1:3]
        windows = window_partition(x, self.window)
        y = windows.view(-1, area, self.heads, C // self.heads).transpose(1, 2)
        y = self.spatial_mlp(y.reshape(-1, self.heads * area, C // self.heads))
        y = y.view(-1, self.heads, area, C // self.heads).transpose(1, 2)
        y = y.reshape(-1, self.window, self.window, C)
        y = window_reverse(y, self.window, padded_H, padded_W)
        return y[:, before : before + H, before : before + W].contiguous()

    def forward(self, x):
        B, L, C = x.shape
        y = self.norm1(x).view(B, self.resolution, self.resolution, C)
        x = x + self.mix(y).view(B, L, C)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim, resolution):
        super().__init__()
        self.resolution = resolution
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x):
        B, _, C = x.shape
        x = x.view(B, self.resolution, self.resolution, C)
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        x = torch.cat(corners, -1).view(B, -1, 4 * C)
        return self.reduction(self.norm(x))


class BasicLayer(nn.Module):
    def __init__(self, dim, resolution, depth, heads, merge):
        super().__init__()
        self.blocks = nn.ModuleList(
            SwinMLPBlock(dim, resolution, heads, window_size, (i % 2) * (window_size // 2))
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
