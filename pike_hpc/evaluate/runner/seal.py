"""Inputs that can't be read before their key is known.

Two processes on one GPU take turns, and a turn may take longer than a model, whose work on the host
hides in it. So the judge puts inputs there before the clock starts, under a pad that the key alone
makes.
"""

from __future__ import annotations

import torch

KEY_BITS = 47

_LOW = -(1 << 63)


def cover(raw: torch.Tensor, key: int) -> None:
    """Exclusive-or with the key's pad, in place; twice is as before.

    Args:
        raw: uint8, a multiple of 8 bytes.
        key: below 2**KEY_BITS. The pad is torch's random stream of this seed, the same in two
            processes on the same GPU and on every CPU.
    """
    words = raw.view(torch.int64)
    generator = torch.Generator(raw.device).manual_seed(key)
    words.bitwise_xor_(torch.empty_like(words).random_(_LOW, None, generator=generator))
