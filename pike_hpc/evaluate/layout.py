"""Where each tensor lies in a shared buffer, and how arguments and answers are built from them.

Trusted data, written by the judge and read by a runner as JSON. Knows no torch: a dtype is its
name. A tree is `["tensor", index]`, `["value", None | bool | int | float | str]`,
`["complex", [real, imaginary]]`, `["tuple" | "list", [tree…]]`, `["dict", {key: tree}]` or, for
dataclasses and named tuples, `["record", [class name, {field: tree}]]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ALIGNMENT = 256
"""Bytes. What cudaMalloc promises, and more than any CPU instruction asks for."""

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

FLOATS = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
"""Types whose values are compared by error; all others must be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One tensor's place in a buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int
    """Elements."""

    @property
    def size_bytes(self) -> int:
        """Bytes it takes."""
        return self.count * ITEM_BYTES[self.dtype]

    def as_json(self) -> dict[str, Any]:
        """What a runner reads."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "count": self.count,
        }


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[Slot, ...]:
    """Slots for (name, dtype, shape), one after the other. Raises KeyError on a strange dtype."""
    slots: list[Slot] = []
    offset = 0
    for name, dtype, shape in tensors:
        count = 1
        for side in shape:
            count *= side
        slot = Slot(name=name, dtype=dtype, shape=shape, offset=offset, count=count)
        slots.append(slot)
        offset += -(-slot.size_bytes // ALIGNMENT) * ALIGNMENT
    return tuple(slots)


def buffer_bytes(slots: tuple[Slot, ...]) -> int:
    """Bytes of a buffer that holds the slots; never 0, which cannot be mapped."""
    return max((s.offset + s.size_bytes for s in slots), default=0) or ALIGNMENT


class NotATree(TypeError):
    """An object that is no tensor, number, text or container of them; its message names it."""


def describe(value: Any, is_tensor: Any, leaves: list[Any], *, numbers_are_leaves: bool) -> Any:
    """The tree of a value; its tensors are appended to `leaves`. Raises NotATree."""

    def below(part: Any) -> Any:
        return describe(part, is_tensor, leaves, numbers_are_leaves=numbers_are_leaves)

    number = isinstance(value, (bool, int, float, complex))
    if is_tensor(value) or (numbers_are_leaves and number):
        leaves.append(value)
        return ["tensor", len(leaves) - 1]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotATree("a dict whose keys are no text")
        return ["dict", {k: below(v) for k, v in value.items()}]
    if (names := field_names(value)) is not None:
        return ["record", [type(value).__name__, {n: below(getattr(value, n)) for n in names}]]
    if isinstance(value, (tuple, list)):
        return ["tuple" if isinstance(value, tuple) else "list", [below(v) for v in value]]
    raise NotATree(f"a {type(value).__name__}")


def field_names(value: Any) -> list[str] | None:
    """Names of the fields of a dataclass or named tuple; None for anything else."""
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None)
        return list(names) if names is not None else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)]
    return None
