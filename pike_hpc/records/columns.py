"""Columns: many records of one kind as JSON that is small and quick to read again.

A record (a dataclass or a NamedTuple) becomes a column a field; what a column repeats is written
once and shared once read.
For documents of our own that carry a checksum: types are those of the annotations, and nothing
is checked but that the columns fit. Annotations as in `codec`, without mappings.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from pike_hpc.records.errors import CodecError

R = TypeVar("R")


def to_columns(kind: type[R], records: Sequence[R]) -> Any:
    """The JSON value of records of one kind."""
    return _pack(kind, records)


def from_columns(kind: type[R], data: Any) -> list[R]:
    """The records that `to_columns` took. Raises CodecError where the columns don't fit."""
    try:
        return _unpack(kind, data)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"no columns of {kind.__name__}: {error}") from None


def _pack(kind: Any, values: Sequence[Any]) -> Any:
    places: dict[Any, int] = {}
    for value in values:
        places.setdefault(value, len(places))
    if 2 * len(places) <= len(values):
        return {"of": _pack_each(kind, list(places)), "at": [places[value] for value in values]}
    return _pack_each(kind, values)


def _pack_each(kind: Any, values: Sequence[Any]) -> Any:
    inner = _without_none(kind)
    if inner is not kind:
        there = [value for value in values if value is not None]
        return {"some": [value is not None for value in values], "rest": _pack(inner, there)}
    if _is_record(kind):
        return {
            name: _pack(hint, [getattr(value, name) for value in values])
            for name, hint in _hints(kind).items()
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [value.value for value in values]
    return list(values)


def _unpack(kind: Any, data: Any) -> list[Any]:
    if isinstance(data, dict) and "at" in data:
        return list(map(_unpack_each(kind, data["of"]).__getitem__, data["at"]))
    return _unpack_each(kind, data)


def _unpack_each(kind: Any, data: Any) -> list[Any]:
    inner = _without_none(kind)
    if inner is not kind:
        rest = iter(_unpack(inner, data["rest"]))
        return [next(rest) if there else None for there in data["some"]]
    if _is_record(kind):
        hints = _hints(kind)
        columns = [_unpack(hint, data[name]) for name, hint in hints.items()]
        if issubclass(kind, tuple):
            return list(map(kind, *columns))
        return _records(kind, dict(zip(hints, columns, strict=True)))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [kind(value) for value in data]
    if typing.get_origin(kind) is tuple:
        return [tuple(value) for value in data]
    if type(data) is not list:
        raise TypeError(f"a list of {kind} is {type(data).__name__}")
    return data


def _records(kind: Any, columns: dict[str, list[Any]]) -> list[Any]:
    """The records of a dataclass, field by field.

    A frozen one's `__init__` takes four times as long; who checks something in it is asked.
    """
    if hasattr(kind, "__post_init__") or not hasattr(kind, "__slots__"):
        rows = zip(*columns.values(), strict=True)
        return [kind(**dict(zip(columns, row, strict=True))) for row in rows]
    (length,) = {len(column) for column in columns.values()}
    records = [object.__new__(kind) for _ in range(length)]
    for name, column in columns.items():
        set_field = getattr(kind, name).__set__
        for record, value in zip(records, column, strict=True):
            set_field(record, value)
    return records


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def _is_record(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    named = hasattr(kind, "_fields")
    names = kind._fields if named else [field.name for field in dataclasses.fields(kind)]
    return {name: hints[name] for name in names}
