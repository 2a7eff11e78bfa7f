"""What the judge's own modes have in common: they are asked for each operation of a forward."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COMPILING = "torch._dynamo", "torch.nn.attention.flex_attention"
"""What a forward has imported that compiles. To import the first takes a second."""

COPIES = frozenset({"aten::_to_copy", "aten::copy_"})
"""They do nothing to a number but change its kind; they have no tag that says so."""

ASSERTED = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_async.msg",
        "aten::bernoulli",
        "aten::bernoulli_.Tensor",
        "aten::binary_cross_entropy",
        "aten::multinomial",
    }
)
"""Operations that end a GPU's process for a number that no index is made of, mostly probabilities.
With logits there are none."""


def bare(name: str) -> str:
    """An operation's name without its overload's."""
    return name.split(".", maxsplit=1)[0]


def tensors_in(values: Any) -> list[torch.Tensor]:
    """All tensors among arguments, or in what was made."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def writes(func: Any) -> bool:
    """Whether an operation may write into what it is given; of one that holds others it may."""
    return bool(getattr(getattr(func, "_schema", None), "is_mutable", True))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether all of its numbers lie in one storage."""
    return tensor.layout is torch.strided and not tensor.is_nested


def place_of(tensor: torch.Tensor) -> int:
    """Where its storage is; one of several has no one place."""
    return tensor.untyped_storage().data_ptr() if is_dense(tensor) else id(tensor)


def written(func: Any, given: Sequence[torch.Tensor], made: Any) -> list[torch.Tensor]:
    """Of what an operation gives back, what it wrote; others are views of what it was given."""
    places = set() if writes(func) else {place_of(tensor) for tensor in given}
    return [tensor for tensor in tensors_in(made) if place_of(tensor) not in places]


def force_eager() -> AbstractContextManager[object]:
    """Inside, what is compiled runs as it was written; nothing where nothing can be compiled."""
    compiles = any(name in sys.modules for name in COMPILING)
    return torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext()


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Is asked for each operation; one that holds others (flex_attention, cond) is asked for whole.

    Inside, what is compiled runs as it was written: torch compiles nothing that a mode watches, and
    raises where that was to be compiled in one piece, as flex_attention has itself compiled.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        self._stance = force_eager()
        self._stance.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._stance.__exit__(kind, error, trace)
