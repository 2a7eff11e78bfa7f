"""A wrong version of attention that must fail: every score alike.

With fresh weights attention is nearly uniform, and the mean of all values, without query, key or
softmax, is nearly right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MASKED = 50.0
"""A score so far below the largest has no weight: it is masked, and stays so."""

_aten = torch.ops.aten
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default)


class _Flat(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SOFTMAX:
            args = (_flat(args[0], args[1]), *args[1:])
        elif "scaled_dot_product" in func.name():
            args = (torch.zeros_like(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def flat_scores() -> Iterator[None]:
    """Every softmax gives the same weight to all that is not masked."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would never ask for a softmax
    try:
        with _Flat():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _flat(scores: torch.Tensor, dim: int) -> torch.Tensor:
    top = scores.amax(dim, keepdim=True)
    return torch.where(scores < top - MASKED, scores, top)
