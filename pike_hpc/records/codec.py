"""Strict JSON for frozen dataclasses: what is written is what is read, or an error says where.

`encode` and `decode` follow the annotations of the record. Unknown keys, missing keys, a bool
where a number is meant and numbers that are not finite are errors: a record from a hostile or
torn file must not become a half-true object. Supported annotations: str, int, float, bool,
enums of strings, records, `tuple[X, ...]`, `tuple[X, Y]`, `Mapping[str, X]` and `X | None`.

What `encode` wrote is read by `fast_codec`; whatever that does not read ends here, where the rules
stand in full.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pike_hpc.records.errors import CodecError
from pike_hpc.records.fast_codec import Unread, reader

R = TypeVar("R")

_PLAIN = frozenset({str, int, float, bool})
"""Types whose values are their own JSON; enums of strings are not among them."""


def to_json(record: object) -> str:
    """One line of canonical JSON: sorted keys, no spaces, ASCII, finite numbers only."""
    return json.dumps(
        encode(record), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def from_json(cls: type[R], text: str | bytes) -> R:
    """The record that `to_json` wrote. Raises CodecError."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}", where=cls.__name__) from None
    return decode(cls, data)


def encode(value: object) -> Any:
    """The JSON value of a record, an enum, or a container of them."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise CodecError(f"{type(value).__name__} has no JSON form")


def decode(cls: type[R], data: object, where: str = "") -> R:
    """The record of type `cls` in a JSON value. Raises CodecError naming the path."""
    try:
        return typing.cast(R, reader(typing.cast(Any, cls))(data))
    except Unread:
        return typing.cast(R, _decode(cls, data, where or getattr(cls, "__name__", str(cls))))


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, data, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data, where)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(isinstance(data, dict), "an object", data, where)
        item = typing.get_args(kind)[1]
        return {k: _decode(item, v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            valid = ", ".join(str(m.value) for m in kind)
            raise CodecError(f"{data!r} is not valid", where=where, valid=valid) from None
    return _decode_scalar(kind, data, where)


def _decode_union(kind: Any, data: Any, where: str) -> Any:
    options = typing.get_args(kind)
    if data is None and type(None) in options:
        return None
    first: CodecError | None = None
    for option in (o for o in options if o is not type(None)):
        try:
            return _decode(option, data, where)
        except CodecError as error:
            first = first or error
    raise first or CodecError("no alternative fits", where=where)


def _decode_tuple(items: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, (list, tuple)), "a list", data, where)
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    _expect(len(items) == len(data), f"a list of {len(items)}", data, where)
    return tuple(
        _decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(items, data, strict=True))
    )


def _decode_record(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), "an object", data, where)
    hints = _hints(kind)
    if not data.keys() <= hints.keys():
        unknown = sorted(data.keys() - hints.keys())
        raise CodecError(f"unknown key {unknown[0]!r}", where=where, valid=", ".join(hints))
    values = {}
    for name, hint in hints.items():
        if name in data:
            read = _decode_scalar if hint in _PLAIN else _decode
            values[name] = read(hint, data[name], f"{where}.{name}")
        elif name in _required(kind):
            raise CodecError(f"missing key {name!r}", where=where)
    try:
        return kind(**values)
    except ValueError as error:
        raise CodecError(str(error), where=where) from None


def _decode_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if kind is float:
        number = isinstance(data, (int, float)) and not isinstance(data, bool)
        _expect(number and math.isfinite(data), "a finite number", data, where)
        return float(data)
    if kind is int:
        _expect(isinstance(data, int) and not isinstance(data, bool), "an integer", data, where)
        return data
    if kind in (str, bool):
        _expect(isinstance(data, kind), f"a {kind.__name__}", data, where)
        return data
    raise CodecError(f"no codec for {kind!r}", where=where)


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Name to annotation of a record's fields, in order. Cached: a journal has many records."""
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in _names(kind)}


@functools.cache
def _required(kind: Any) -> frozenset[str]:
    """The fields without a default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return frozenset(
        f.name for f in fields if f.default is missing and f.default_factory is missing
    )


def _expect(ok: bool, meaning: str, data: object, where: str) -> None:
    if not ok:
        raise CodecError(f"expected {meaning}, found {str(data)[:80]!r}", where=where)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
