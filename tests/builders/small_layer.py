"""One linear layer as a task, and the same as a program: for tests of where judging happens."""

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []
"""

HONEST = SOURCE.partition("def get_inputs")[0].replace("class Model", "class ModelNew")
