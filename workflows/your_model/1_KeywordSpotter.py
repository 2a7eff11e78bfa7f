"""A small keyword spotter: 40 mel bands by 98 frames in, 12 words out."""

import torch
from torch import nn

CHECKPOINT = None
"""Path of your weights, such as "/data/spotter.pt"; None judges with random ones."""

batch_size = 4
bands = 40
frames = 98
channels = 64
words = 12


class Block(nn.Module):
    """A depthwise and a pointwise convolution beside a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, 9, padding=4, groups=channels, bias=False)
        self.pointwise = nn.Conv1d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.pointwise(self.depthwise(x))))


class Model(nn.Module):
    def __init__(self, bands, channels, words):
        super().__init__()
        self.stem = nn.Conv1d(bands, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(channels)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(4)))
        self.head = nn.Linear(channels, words)

    def forward(self, mel):
        x = torch.relu(self.norm(self.stem(mel)))
        return self.head(self.blocks(x).mean(dim=-1))


def get_inputs():
    return [torch.randn(batch_size, bands, frames)]


def get_init_inputs():
    return [bands, channels, words]


def get_state_dict():
    if CHECKPOINT is None:
        return None
    return torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
