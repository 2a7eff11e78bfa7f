"""What a model keeps from one call to the next, and how it is put back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

STATE_BYTES = 1 << 30
"""A model that keeps more than this beside its parameters is not reset between calls."""

_ATTRIBUTE = re.compile(r"\.\s*(\w+)")


def writable(tensors: Iterable[Any]) -> AbstractContextManager[None]:
    """Where all of these can be written in place.

    What a program makes under an inference mode of its own is written only there; anything new that
    is made there is of that kind, which is why it is no place to be without need.
    """
    there = (t for t in tensors if torch.is_tensor(t) and not torch.nn.parameter.is_lazy(t))
    if any(t.is_inference() for t in there):
        return torch.inference_mode()
    return torch.no_grad()


class State:
    """What a model holds beside its parameters, so that one call leaves nothing to the next."""

    def __init__(self, model: torch.nn.Module, reference: str | None = None) -> None:
        """Copy buffers, tensors that are plain attributes, and plain numbers.

        Args:
            model: whose.
            reference: source of the reference where the model is another program: flags, texts and
                None, which may say that something is not made yet, are put back only under names
                that the reference has, too.
        """
        self._kept: list[tuple[torch.nn.Module, str, Any, Any]] = []
        plain = (bool, int, float, str, type(None))
        names = None if reference is None else set(_ATTRIBUTE.findall(reference))
        for module in model.modules():
            held = {**vars(module), **module._buffers}
            for name, value in held.items():
                if torch.nn.parameter.is_lazy(value):
                    continue  # nothing is there yet
                if isinstance(value, torch.Tensor):
                    self._kept.append((module, name, value, value.detach().clone()))
                elif not isinstance(value, plain) or name.startswith("_"):
                    continue
                elif names is None or name in names or type(value) in (int, float):
                    self._kept.append((module, name, value, value))

    @staticmethod
    def size_bytes(model: torch.nn.Module) -> int:
        """Bytes that a copy would take."""
        return sum(
            value.nbytes
            for module in model.modules()
            for value in {**vars(module), **module._buffers}.values()
            if isinstance(value, torch.Tensor)
        )

    def restore(self) -> None:
        """Put everything back."""
        with writable(value for _, _, value, _ in self._kept):
            for module, name, value, kept in self._kept:
                if isinstance(value, torch.Tensor):
                    value.copy_(kept)
                setattr(module, name, value)
