"""A program's own classes, in the place of those that its task has by the same names.

A copy of a task's file has its own Enums and dataclasses, and asks what it is given for them. What
the task's file makes is therefore of the program's classes, where these are made alike.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

Classes = Mapping[str, type]


def lend(task: ModuleType, program: ModuleType) -> Classes:
    """Have the task's functions make what they make of the program's classes; these, by name.

    Models are none of them, nor is a class that has other attributes or members than the task's.
    """
    theirs, mine = _defined(task), _defined(program)
    own = {
        n: mine[n] for n, cls in theirs.items() if n in mine and _makeup(mine[n]) == _makeup(cls)
    }
    vars(task).update(own)
    return own


def adopted(value: Any, own: Classes, module: str) -> Any:
    """The value, of these classes wherever it is of `module`'s by their names.

    For what was made before the program was there, such as a configuration beside the functions.
    """
    kind = type(value)
    if kind is dict:
        return {k: adopted(v, own, module) for k, v in value.items()}
    if kind in (list, tuple):
        return kind(adopted(v, own, module) for v in value)
    mine = own.get(kind.__name__) if kind.__module__ == module else None
    if mine is None or kind is mine:
        return value
    return _remade(mine, value, lambda part: adopted(part, own, module))


def _remade(cls: Any, value: Any, part: Callable[[Any], Any]) -> Any:
    """Another class's value as one of this; what only its own constructor can make, as it is."""
    if issubclass(cls, enum.Enum):
        return cls[value.name]
    if issubclass(cls, tuple):
        return cls(*map(part, value))
    if cls.__new__ is not object.__new__:
        return value
    slots = [n for base in type(value).__mro__ for n in vars(base).get("__slots__", ())]
    found = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    made = object.__new__(cls)
    for name, held in (found | getattr(value, "__dict__", {})).items():
        object.__setattr__(made, name, part(held))
    return made


def _defined(module: ModuleType) -> dict[str, type]:
    classes = {n: cls for n, cls in vars(module).items() if isinstance(cls, type)}
    return {
        name: cls
        for name, cls in classes.items()
        if cls.__module__ == module.__name__ and not issubclass(cls, torch.nn.Module)
    }


def _makeup(cls: type) -> tuple[Any, ...]:
    """What instances of it are made of; two classes of one text have the same."""
    members = getattr(cls, "__members__", {})
    bases = tuple(base.__name__ for base in cls.__mro__)
    return bases, set(vars(cls)), tuple(getattr(cls, "__annotations__", {})), tuple(members)
