"""A tiny task of queries, keys and values, whose `{body}` makes an answer of them."""

SOURCE = """
import time

import torch
import torch.nn as nn

SEEN = set()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        {body}


def get_inputs():
    return [torch.randn(4, 8, 16)]


def get_init_inputs():
    return []
"""

WORKS = (
    "end = time.thread_time() + 0.12\n"
    "        while time.thread_time() < end:\n"
    "            pass\n"
    "        "
)
"""Before the rest of a body: its call takes longer than what is asked more of."""
