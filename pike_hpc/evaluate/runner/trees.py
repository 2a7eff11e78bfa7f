"""Arguments and answers: tensors over shared bytes, and the containers around them."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .classes import in_stead
from .protocol import Code, Refused


def host_bytes(fd: int, *, private: bool = False) -> torch.Tensor:
    """The shared bytes of a memfd, at the same address for good."""
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    raw = mmap.mmap(fd, os.fstat(fd).st_size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(raw, dtype=torch.uint8)


def views(slots: Sequence[dict[str, Any]], raw: torch.Tensor) -> list[torch.Tensor]:
    """Tensors over bytes."""
    found = []
    for slot in slots:
        dtype = getattr(torch, slot["dtype"])
        size = slot["count"] * dtype.itemsize
        part = raw[slot["offset"] : slot["offset"] + size].view(dtype)
        found.append(part.view(slot["shape"]))
    return found


def unflatten(tree: Any, leaves: Sequence[torch.Tensor], classes: Mapping[str, Any]) -> Any:
    """The arguments that `tree` describes, with `leaves` for its tensors.

    Args:
        tree: as layout.describe makes it.
        leaves: tensors by number.
        classes: where records find their class: the task's module.
    """
    kind, value = tree
    if kind == "tensor":
        return leaves[value]
    if kind == "value":
        return value
    if kind == "complex":
        return complex(*value)
    if kind == "dict":
        return {k: unflatten(v, leaves, classes) for k, v in value.items()}
    if kind == "record":
        name, fields = value
        cls = in_stead(classes[name])
        return record(cls, {k: unflatten(v, leaves, classes) for k, v in fields.items()})
    items = [unflatten(v, leaves, classes) for v in value]
    return tuple(items) if kind == "tuple" else items


def record(cls: Any, fields: dict[str, Any]) -> Any:
    """An instance of a dataclass or named tuple, made without its constructor where it has one."""
    if issubclass(cls, tuple):
        return cls(**fields)
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def flatten(tree: Any, answer: Any, into: list[Any]) -> None:
    """Append the leaves of an answer. Raises Refused where it is not built like `tree`.

    A list stands for a tuple and a tuple for a list: what C++ returns as a vector is a list.
    """
    kind, value = tree
    if kind == "tensor":
        into.append(answer)
    elif kind == "value":
        if type(answer) is not type(value) or answer != value:
            raise _unlike(f"{value!r}", answer)
    elif kind == "dict":
        if not isinstance(answer, Mapping) or set(answer) != set(value):
            raise _unlike(f"a dict of {', '.join(value)}", answer)
        for key, branch in value.items():
            flatten(branch, answer[key], into)
    elif kind == "record":
        # A class with the same fields will do: a candidate defines its own.
        if not all(hasattr(answer, name) for name in value[1]):
            raise _unlike(f"a record with {', '.join(value[1])}", answer)
        for name, branch in value[1].items():
            flatten(branch, getattr(answer, name), into)
    else:
        if not isinstance(answer, (tuple, list)) or len(answer) != len(value):
            raise _unlike(f"a {kind} of {len(value)}", answer)
        for branch, item in zip(value, answer, strict=True):
            flatten(branch, item, into)


def _unlike(wanted: str, answer: Any) -> Refused:
    """The refusal; the log, which is the program's own, says what was there instead."""
    size = f" of {len(answer)}" if isinstance(answer, (tuple, list, Mapping)) else ""
    return _refusal(Code.OUTPUT_TREE, wanted, f"{type(answer).__name__}{size}")


def _refusal(code: Code, wanted: str, found: str) -> Refused:
    sys.stderr.write(f"output: {found} where the reference has {wanted}\n")
    return Refused(code)


def as_tensor(leaf: Any, slot: torch.Tensor, home: str) -> Any:
    """The leaf, if its bytes may fill the slot: same shape, same kind of number, same home.

    What the reference brings to the host may stay on the device: the way to the slot is timed, too.

    Args:
        leaf: an output.
        slot: where its bytes go, which says nothing of where they come from.
        home: the kind of device that the reference's is on.
    """
    if isinstance(leaf, (bool, int, float, complex)) and slot.dim() == 0:
        leaf = torch.tensor(leaf)
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        raise _refusal(Code.OUTPUT_TYPE, "a plain tensor", type(leaf).__name__)
    if leaf.shape != slot.shape:
        raise _refusal(Code.OUTPUT_SHAPE, f"{tuple(slot.shape)}", f"{tuple(leaf.shape)}")
    if leaf.is_floating_point() != slot.is_floating_point() or (
        leaf.is_complex() != slot.is_complex()
        or (leaf.dtype == torch.bool) != (slot.dtype == torch.bool)
    ):
        raise _refusal(Code.OUTPUT_DTYPE, f"{slot.dtype}", f"{leaf.dtype}")
    if leaf.is_cpu and home != "cpu":
        raise _refusal(Code.OUTPUT_DEVICE, f"one on {home}", "a tensor or number on the host")
    return leaf
