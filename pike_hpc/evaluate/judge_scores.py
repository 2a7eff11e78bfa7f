"""A wrong version of attention that must fail: every score alike.

With fresh weights attention is nearly uniform, and the mean of all values, without query, key or
softmax, is nearly right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pike_hpc.evaluate.judge_operations import Operations, bare

MASKED = 50.0
"""A score so far below the largest has no weight: it is masked, and stays so."""

SOFTMAX = frozenset({"aten::softmax", "aten::_softmax", "aten::_safe_softmax"})
"""Operations that weigh scores, but for fused attention; the last is what that is taken apart to
where nothing is fused."""

FUSED = "scaled_dot_product", "flex_attention"
"""Parts of names of fused attention, whose first arguments are query and key."""


class NoScores(Exception):
    """Nothing that was called has scores that are not alike: there is no such wrong version."""


class _Flat(Operations):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.changed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if bare(func.name()) in SOFTMAX:
            flat = _flat(args[0], args[1])
            self.changed = self.changed or not torch.equal(flat, args[0])
            args = (flat, *args[1:])
        elif any(part in func.name() for part in FUSED):
            self.changed = self.changed or bool(args[0].any())
            args = (torch.zeros_like(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def flat_scores() -> Iterator[None]:
    """Every softmax gives the same weight to all that is not masked.

    Raises:
        NoScores: at the end, where none was called or all scores were alike anyway. What the block
            computed then differs from what it computes elsewhere by rounding alone.
    """
    with without_fast_path(), _Flat() as mode:
        yield
    if not mode.changed:
        raise NoScores


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside, torch's own attention asks for a softmax: its fast path never does."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _flat(scores: torch.Tensor, dim: int) -> torch.Tensor:
    top = scores.amax(dim, keepdim=True)
    return torch.where(scores < top - MASKED, scores, top)
