"""HunyuanVideo's causal 3-D VAE decoder: a middle block with attention and one up block.

Quirk: the frame-causal attention mask is rebuilt in every forward, row by row in Python.
Quirk: group normalisation spans all frames; only convolutions and attention are causal.
Quirk: the first frame is upsampled apart from the others, in space only.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
in_channels = 3
out_channels = 3
frames = 16
height = 32
width = 32
channels = 64
norm_groups = 32
resnets_per_block = 3
upsample_time = 1
upsample_space = 2
EPS = 1e-6


class CausalConv3d(nn.Module):
    """A 3x3x3 convolution that sees this frame and the two before it, edges replicated."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size=3)

    def forward(self, x):
        # left, right, top, bottom, frames before, frames after
        return self.conv(F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"))


class ResnetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.GroupNorm(norm_groups, channels, eps=EPS)
        self.conv1 = CausalConv3d(channels, channels)
        self.norm2 = nn.GroupNorm(norm_groups, channels, eps=EPS)
        self.conv2 = CausalConv3d(channels, channels)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return x + h


class Attention(nn.Module):
    """One head over all tokens (batch, tokens, channels), with a residual connection."""

    def __init__(self):
        super().__init__()
        self.group_norm = nn.GroupNorm(norm_groups, channels, eps=EPS)
        self.to_q = nn.Linear(channels, channels)
        self.to_k = nn.Linear(channels, channels)
        self.to_v = nn.Linear(channels, channels)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x, mask):
        h = self.group_norm(x.transpose(1, 2)).transpose(1, 2)
        q, k, v = (project(h).unsqueeze(1) for project in (self.to_q, self.to_k, self.to_v))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)
        return x + self.to_out[0](h)


def frame_causal_mask(frame_count, frame_tokens, like):
    """0 where a token may look (its own frame and earlier ones), -inf elsewhere."""
    tokens = frame_count * frame_tokens
    mask = torch.full((tokens, tokens), float("-inf"), dtype=like.dtype, device=like.device)
    for row in range(tokens):
        mask[row, : (row // frame_tokens + 1) * frame_tokens] = 0
    return mask


class MidBlock(nn.Module):
    def __init__(self):
        super().__init__()
        before, attention, after = ResnetBlock(), Attention(), ResnetBlock()
        self.attentions = nn.ModuleList([attention])
        self.resnets = nn.ModuleList([before, after])

    def forward(self, x):
        x = self.resnets[0](x)
        tokens = x.flatten(2).transpose(1, 2)
        mask = frame_causal_mask(x.shape[2], x.shape[3] * x.shape[4], tokens)
        tokens = self.attentions[0](tokens, mask)
        x = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
        return self.resnets[1](x)


class Upsample(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = CausalConv3d(channels, channels)

    def forward(self, x):
        space = (upsample_space, upsample_space)
        first = F.interpolate(x[:, :, 0], scale_factor=space, mode="nearest").unsqueeze(2)
        if x.shape[2] == 1:
            return self.conv(first)
        others = F.interpolate(x[:, :, 1:], scale_factor=(upsample_time, *space), mode="nearest")
        return self.conv(torch.cat((first, others), dim=2))


class UpBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.resnets = nn.ModuleList(ResnetBlock() for _ in range(resnets_per_block))
        self.upsamplers = nn.ModuleList([Upsample()])

    def forward(self, x):
        for resnet in self.resnets:
            x = resnet(x)
        return self.upsamplers[0](x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = CausalConv3d(in_channels, channels)
        # The list is registered before the middle block but filled, and drawn, after it.
        self.up_blocks = nn.ModuleList()
        self.mid_block = MidBlock()
        self.up_blocks.append(UpBlock())
        self.conv_norm_out = nn.GroupNorm(norm_groups, channels, eps=EPS)
        self.conv_out = CausalConv3d(channels, out_channels)

    def forward(self, x):
        x = self.mid_block(self.conv_in(x))
        x = self.up_blocks[0](x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


def get_inputs():
    return [torch.randn(batch_size, in_channels, frames, height, width)]


def get_init_inputs():
    return []
