"""A forward in other arithmetic: every number rounded, or none of its choices known."""

from __future__ import annotations

from typing import Any

import torch

from pike_hpc.evaluate.judge_operations import Operations, bare, place_of, tensors_in, writes

_CHOICES = frozenset(
    {
        *("argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "median", "nanmedian"),
        *("max", "min", "mode", "cummax", "cummin"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"),
        *("fractional_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    }
)
"""Operations that also tell where they found what: of ties any place is right."""
_PLACES = frozenset({"argmax", "argmin", "argsort"})
"""Those that tell nothing else."""


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
        given = {place_of(t) for t in tensors_in((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        written = self._made if writes(func) else frozenset()
        for leaf in tensors_in(made):
            if leaf.is_floating_point():
                memory = place_of(leaf)
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
        name = bare(func.name()).removeprefix("aten::")
        if name in _CHOICES:
            # Beside what was found lies where; without a dimension there may be no place at all.
            places = made[1:] if isinstance(made, tuple) else (made,) if name in _PLACES else ()
            for place in places:
                place.zero_()
        return made
