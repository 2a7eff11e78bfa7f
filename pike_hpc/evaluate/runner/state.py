"""What a model keeps from one call to the next, and how it is put back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from .contents import CONTAINERS, NUMBERS, Contents, tensors_in

STATE_BYTES = 1 << 30
"""A model that keeps more than this beside its parameters is not reset between calls."""

_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes that every module has."""

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
        """Copy tensors in buffers, plain attributes, lists, tuples and dicts, and plain numbers.

        Args:
            model: whose.
            reference: source of the reference where the model is another program: flags, texts and
                None, which may say that something is not made yet, are put back only under names
                that the reference has, too. So is how much a list or a dict holds.
        """
        self._kept: list[tuple[torch.nn.Module, str, Any]] = []
        self._contents: list[Contents] = []
        tensors: dict[int, torch.Tensor] = {}
        plain = (bool, int, float, str, type(None))
        names = None if reference is None else set(_ATTRIBUTE.findall(reference))
        for module, name, value in _held(model):
            same = names is None or name in names
            tensors |= {id(t): t for t in tensors_in(value) if not torch.nn.parameter.is_lazy(t)}
            if type(value) in CONTAINERS:
                self._contents.append(Contents(value, exact=same))
            elif not isinstance(value, torch.Tensor):
                if not isinstance(value, plain) or name.startswith("_"):
                    continue
                if not same and type(value) not in NUMBERS:
                    continue
            self._kept.append((module, name, value))
        self._tensors = [(t, t.detach().clone()) for t in tensors.values() if not _overlaps(t)]

    @staticmethod
    def size_bytes(model: torch.nn.Module) -> int:
        """Bytes that a copy would take."""
        held = {id(t): t for _, _, value in _held(model) for t in tensors_in(value)}
        return sum(tensor.numel() * tensor.element_size() for tensor in held.values())

    def restore(self) -> None:
        """Put everything back."""
        with writable(tensor for tensor, _ in self._tensors):
            for tensor, kept in self._tensors:
                tensor.copy_(kept)
        for contents in self._contents:
            contents.restore()
        for module, name, value in self._kept:
            setattr(module, name, value)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether numbers of it share memory, as in an expanded mask: nobody can write those."""
    if tensor.layout is not torch.strided:
        return False
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return any(side > 1 and step == 0 for side, step in sides)


def _held(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, Any]]:
    """Buffers and attributes of all modules; nothing without a shape, nothing of torch's own."""
    for module in model.modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if name not in _MODULE and not torch.nn.parameter.is_lazy(value):
                yield module, name, value
