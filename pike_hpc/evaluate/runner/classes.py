"""A program's own classes, in the place of those that its task has by the same names.

A copy of a task's file has its own Enums and dataclasses, and asks what it is given for them. What
it is given is therefore of its own classes, where these are made alike.
"""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

import torch

_IN_STEAD: dict[type, Any] = {}
"""By the task's class, the program's: there is one of each in a process."""


def lend(task: ModuleType, program: ModuleType) -> None:
    """Have what the program is given be of its own classes.

    Models are none of them, nor is a class that has other attributes or members than the task's.
    """
    theirs, mine = _defined(task), _defined(program)
    _IN_STEAD.clear()
    for name, cls in theirs.items():
        if name in mine and _makeup(mine[name]) == _makeup(cls):
            _IN_STEAD[cls] = mine[name]


def in_stead(cls: Any) -> Any:
    """The program's class for one of its task's; any other as it is."""
    return _IN_STEAD.get(cls, cls)


def adopted(values: list[Any]) -> list[Any]:
    """Values, and what they hold, of the program's classes; what can't be made anew as it is."""
    if not _IN_STEAD:
        return values
    memo: dict[int, Any] = {}
    try:
        return [_adopted(value, memo) for value in values]
    except Exception:  # whatever a class makes of being made in another way
        return values


def _adopted(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    cls = in_stead(kind)
    if kind is list:
        parts: list[Any] = []
        memo[id(value)] = parts
        parts.extend(_adopted(part, memo) for part in value)
        return parts
    if kind is dict:
        items: dict[Any, Any] = {}
        memo[id(value)] = items
        items.update((_adopted(k, memo), _adopted(v, memo)) for k, v in value.items())
        return items
    if cls is kind and kind is not tuple:
        return value
    memo[id(value)] = made = _remade(cls, value, memo)
    return made


def _remade(cls: Any, value: Any, memo: dict[int, Any]) -> Any:
    """One of this class as the value is one of another."""
    if issubclass(cls, enum.Enum):
        return cls(value.value)
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [_adopted(part, memo) for part in value])
    memo[id(value)] = made = object.__new__(cls)
    slots = [n for base in type(value).__mro__ for n in vars(base).get("__slots__", ())]
    found = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    for name, part in (found | getattr(value, "__dict__", {})).items():
        object.__setattr__(made, name, _adopted(part, memo))
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
