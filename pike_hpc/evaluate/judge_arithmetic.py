"""A forward in other arithmetic: every number rounded, or none of its choices known."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from pike_hpc.evaluate.judge_operations import Operations

_CHOICES = frozenset(
    {
        *("argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "median", "nanmedian"),
        *("max", "min", "mode", "cummax", "cummin"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"),
        *("fractional_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    }
)
"""Operations that also tell where they found what: of ties any place is right."""


class Rounded(Operations):  # type: ignore[no-untyped-call]
    """Rounds what every operation makes, as a program does that keeps its numbers so.

    Autocast leaves what is done element by element in float32.
    """

    def __init__(self, to: torch.dtype) -> None:
        super().__init__()
        self._to = to
        self._made: set[int] = set()
        """Memory of this run: weights and their views are not to be written."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        written = self._made if _writes(func) else frozenset()
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                memory = _memory(leaf)
                if memory not in given or memory in written:
                    self._made.add(memory)
                    self._round(leaf)
        return made

    def _round(self, leaf: torch.Tensor) -> None:
        """What has no such number becomes the one farthest out: masks stay masks."""
        if leaf.dtype is not self._to:
            ends = torch.finfo(self._to)
            near = torch.where(leaf.isfinite(), leaf.clamp(ends.min, ends.max), leaf)
            leaf.copy_(near.to(self._to))


class Unchosen(Operations):  # type: ignore[no-untyped-call]
    """Takes the first place for every one that was chosen; what was found there stays."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").split(".")[0]
        if name in _CHOICES:
            for leaf in tree_leaves(made):
                if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64:
                    leaf.zero_()
        return made


def _writes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
