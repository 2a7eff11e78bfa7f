"""Readers of records as `codec.encode` writes them, made once for each annotation.

A journal of 10,000 evaluations holds 50,000 records, and every look at a run reads them all. A
reader gives exactly what the strict rules of `codec` give, or raises Unread: then those rules
decide, and say what is wrong and where. It never accepts what they refuse.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[Any], Any]

_PLAIN = (str, int, bool)
_EXACT = 2**53
"""Whole numbers below it are floats as they are."""


class Unread(Exception):
    """Not as `encode` writes it: perhaps wrong, perhaps of another version."""


@functools.cache
def reader(kind: Any) -> Reader:
    """What reads values of this annotation. The reader raises Unread."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        many = arguments[1:] == (Ellipsis,)
        return _tuple(reader(arguments[0])) if many else _row([reader(each) for each in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(reader(arguments[1]))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    return _plain(kind) if kind in _PLAIN else _float if kind is float else _nothing


def _record(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    # What is checked by its type alone, and what needs a reader of its own.
    plain = [(name, hints[name]) for name in names if hints[name] in _PLAIN]
    others = [(name, reader(hints[name])) for name in names if hints[name] not in _PLAIN]

    def read(data: Any) -> Any:
        if type(data) is not dict or len(data) != len(names):
            raise Unread
        try:
            for name, wanted in plain:
                if type(data[name]) is not wanted:
                    raise Unread
            values = data.copy()
            for name, read_other in others:
                values[name] = read_other(data[name])
            return kind(**values)
        except (KeyError, TypeError, ValueError):
            raise Unread from None

    return read


def _optional(options: tuple[Any, ...]) -> Reader:
    wanted = [option for option in options if option is not type(None)]
    if len(wanted) != 1 or len(options) != 2:
        return _nothing
    read = reader(wanted[0])
    return lambda data: None if data is None else read(data)


def _tuple(read: Reader) -> Reader:
    def read_all(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            raise Unread
        return tuple([read(each) for each in data])

    return read_all


def _row(readers: list[Reader]) -> Reader:
    def read_all(data: Any) -> tuple[Any, ...]:
        if type(data) is not list or len(data) != len(readers):
            raise Unread
        return tuple([read(each) for read, each in zip(readers, data, strict=True)])

    return read_all


def _mapping(read: Reader) -> Reader:
    def read_all(data: Any) -> dict[str, Any]:
        if type(data) is not dict:
            raise Unread
        return {name: read(each) for name, each in data.items()}

    return read_all


def _enum(kind: type[enum.Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(data: Any) -> Any:
        member = members.get(data) if type(data) is str else None
        if member is None:
            raise Unread
        return member

    return read


def _plain(kind: type) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise Unread
        return data

    return read


def _float(data: Any) -> float:
    if type(data) is float and data - data == 0.0:  # finite
        return data
    if type(data) is int and -_EXACT < data < _EXACT:
        return float(data)
    raise Unread


def _nothing(_: Any) -> Any:
    raise Unread
