"""What the judge's own modes have in common: they are asked for each operation of a forward."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COMPILING = "torch._dynamo", "torch.nn.attention.flex_attention"
"""What a forward has imported that compiles. To import the first takes a second."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Is asked for each operation; one that holds others (flex_attention, cond) is asked for whole.

    Inside, what is compiled runs as it was written: torch compiles nothing that a mode watches, and
    raises where that was to be compiled in one piece, as flex_attention has itself compiled.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        compiles = any(name in sys.modules for name in COMPILING)
        self._stance = torch.compiler.set_stance("force_eager") if compiles else None
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._stance is not None:
            self._stance.__exit__(kind, error, trace)
