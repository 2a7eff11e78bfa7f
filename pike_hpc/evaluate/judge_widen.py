"""A model's arithmetic in float64, operation by operation, whatever its weights and casts say.

Weights stay as they are and are widened where an operation reads them, so the float64 answer of
11 GB of bfloat16 weights costs one layer's weights more, not 45 GB. A cast to a narrower type
inside the model becomes a cast to float64. Choices among a few (the experts of a router) are those
of the model's own run: in float64 a near-tie would fall the other way and compare two different
functions. Knows nothing of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

from pike_hpc.evaluate.judge_operations import Operations

WIDER: Mapping[torch.dtype, torch.dtype] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}

_aten = torch.ops.aten
_CHOICES: Mapping[Any, int] = {
    _aten.topk.default: 1,
    _aten.sort.default: 1,
    _aten.sort.stable: 1,
    _aten.max.dim: 1,
    _aten.min.dim: 1,
    _aten.argmax.default: 0,
    _aten.argmin.default: 0,
    _aten.argsort.default: 0,
}
"""Operations that choose, and which of their results holds the indices."""

_ALSO_CHOOSE = frozenset(
    {
        *(_aten.kthvalue, _aten.median, _aten.nanmedian, _aten.quantile, _aten.nanquantile),
        *(_aten.mode, _aten.cummax, _aten.cummin, _aten.msort, _aten.argsort),
        *(_aten.searchsorted, _aten.bucketize),
    }
)
"""Operations that choose as well, in all their forms, and do so anew in float64."""

_DIMENSION: Mapping[Any, tuple[int, int]] = {
    _aten.topk.default: (2, -1),
    _aten.sort.default: (1, -1),
    _aten.sort.stable: (2, -1),
    _aten.max.dim: (1, 0),
    _aten.min.dim: (1, 0),
}
"""Where the dimension stands among their arguments, and its default."""


class Unwidenable(RuntimeError):
    """The model reads the bits of a number, or chooses otherwise in its second run."""


Choices = list[torch.Tensor]
"""Indices chosen in one run, in order."""


class Recording(Operations):  # type: ignore[no-untyped-call]
    """Notes what a run chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: Choices = []
        self.chooses = False
        """Whether it does, also where that is not noted."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _CHOICES:
            self.choices.append(_indices(func, found))
        self.chooses |= func in _CHOICES or getattr(func, "overloadpacket", None) in _ALSO_CHOOSE
        return found


class InDouble(Operations):  # type: ignore[no-untyped-call]
    """Every operation in float64; choices as recorded. Raises Unwidenable."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = iter(choices)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten.view.dtype:
            raise Unwidenable("it reads the bits of its numbers")
        written = _written(func, args, kwargs or {})

        def widen(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return WIDER.get(value, value)
            if isinstance(value, torch.Tensor) and id(value) not in written:
                return value.to(WIDER.get(value.dtype, value.dtype))
            return value

        # A view of a parameter has to be an ordinary tensor, as the parameter is.
        with torch.inference_mode(False), torch.no_grad():
            wide_args, wide_kwargs = tree_map(widen, args), tree_map(widen, kwargs or {})
            if func in _CHOICES:
                return self._replay(func, wide_args, wide_kwargs)
            return func(*wide_args, **wide_kwargs)

    def _replay(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        chosen = next(self._choices, None)
        own = _indices(func, found)
        if chosen is None or chosen.shape != own.shape:
            raise Unwidenable("its choices differ between float64 and its own precision")
        if func not in _DIMENSION:
            return chosen
        place, default = _DIMENSION[func]
        dim = kwargs.get("dim", args[place] if len(args) > place else default)
        kept = own.dim() == args[0].dim()
        index = chosen if kept else chosen.unsqueeze(dim)
        values = args[0].gather(dim, index)
        return (values if kept else values.squeeze(dim)), chosen


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that a forward makes itself are as wide as this."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _indices(func: Any, found: Any) -> torch.Tensor:
    indices: torch.Tensor = found if isinstance(found, torch.Tensor) else found[_CHOICES[func]]
    return indices


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> set[int]:
    """Tensors that the operation writes: a widened copy of them would be lost."""
    found = set()
    schema = getattr(func, "_schema", None)
    for i, argument in enumerate(() if schema is None else schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found |= {id(v) for v in (value if isinstance(value, (list, tuple)) else [value])}
    return found
