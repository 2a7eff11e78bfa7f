"""Nodes in, annotated frozen dataclasses out. Knows types and limits, no key by name.

`read` follows the annotations of a dataclass: str, int, float, bool, Literal, string enums,
dataclasses, `tuple[X, ...]`, `Mapping[str, X]`, `Scalar`, `X | None`, each with limits as
`Annotated` extras. The first thing wrong raises one UsageError with its place. Beside the value
it returns where each key came from.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pike_hpc.config.yaml_source import ListNode, MapNode, Node, ScalarNode
from pike_hpc.records import UsageError, did_you_mean

C = TypeVar("C")

Scalar = str | int | float | bool
"""A value whose type the reader of the key decides: options of a strategy, sbatch extras."""

DEFAULT = "default"
"""Where a value comes from that nobody wrote."""

INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,3})?")
CLOCK = re.compile(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?")
"""YAML 1.1 makes 12:30:00 the integer 45000; here it is an error where it stands unquoted."""
NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TRUTHS = frozenset(
    spelling
    for word in ("yes", "no", "on", "off", "true", "false", "y", "n")
    for spelling in (word, word.capitalize(), word.upper())
)


@dataclasses.dataclass(frozen=True, slots=True)
class AtLeast:
    """Lowest value of a number, or smallest number of items of a list."""

    low: float


@dataclasses.dataclass(frozen=True, slots=True)
class Shaped:
    """A text must match `pattern` whole; `meaning` says so to a person."""

    pattern: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class NotHere:
    """Words that other versions or programs know, each with what to do instead."""

    words: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The only keys that a mapping may have."""

    valid: tuple[str, ...]


def read(cls: type[C], node: MapNode, sources: dict[str, str], prefix: str = "") -> C:
    """The `cls` written in `node`; adds dotted key -> place to `sources`. Raises UsageError."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # any dataclass
    for key in node.items:
        if key not in fields:
            raise unknown_key(key, prefix, tuple(fields), node.key_where.get(key, node.where))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        path = f"{prefix}{name}"
        if name in node.items:
            values[name] = _value(hints[name], node.items[name], path, sources)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UsageError(f"missing key {path!r}", where=node.where, fix=f"add `{name}: …`")
        else:
            _record_default(hints[name], path, sources)
    return cls(**values)


def unknown_key(key: str, prefix: str, valid: tuple[str, ...], where: str) -> UsageError:
    """The error for a key that no schema has, naming the nearest that one has."""
    return UsageError(
        f"unknown key {prefix + key!r}",
        where=where,
        valid=", ".join(valid),
        fix=did_you_mean(key, valid),
    )


def _value(kind: Any, node: Node, path: str, sources: dict[str, str]) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _limited(kind, node, path, sources)
    if kind != Scalar and origin in (typing.Union, types.UnionType):
        (inner,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
        if not _is_null(node):
            return _value(inner, node, path, sources)
        sources[path] = node.where
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return read(kind, _a_map(node, path), sources, f"{path}.")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(typing.get_args(kind)[1], _a_map(node, path), path, sources)
    sources[path] = node.where
    return _leaf(kind, node, path)


def _limited(kind: Any, node: Node, path: str, sources: dict[str, str]) -> Any:
    base, *limits = typing.get_args(kind)
    for limit in limits:
        _check_written(limit, node, path)
    value = _value(base, node, path, sources)
    for limit in limits:
        _check_limit(limit, value, path, node.where)
    return value


def _leaf(kind: Any, node: Node, path: str) -> Any:
    if kind == Scalar:
        return _free_scalar(node, path)
    if typing.get_origin(kind) is tuple:
        if not isinstance(node, ListNode):
            raise _wrong_type("a list [a, b]", node, path)
        item = typing.get_args(kind)[0]
        return tuple(_value(item, n, f"{path}[{i}]", {}) for i, n in enumerate(node.items))
    return _scalar(kind, _a_scalar(kind, node, path), path)


def _mapping(item: Any, node: MapNode, path: str, sources: dict[str, str]) -> dict[str, Any]:
    if not node.items:
        sources[path] = node.where
    items = node.items
    if dataclasses.is_dataclass(item):  # a record given as null is absent
        items = {k: n for k, n in items.items() if not _is_null(n)}
    return {k: _value(item, n, f"{path}.{k}", sources) for k, n in items.items()}


def _scalar(kind: Any, node: ScalarNode, path: str) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        return _choice(_text(node, path), typing.get_args(kind), path, node.where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(_choice(_text(node, path), tuple(m.value for m in kind), path, node.where))
    if kind is str:
        return _text(node, path)
    _refuse_clock(node, path)
    if kind is bool:
        if node.plain and node.text in ("true", "false"):
            return node.text == "true"
        raise _wrong_type("true or false", node, path)
    if kind is int and node.plain and INT.fullmatch(node.text):
        return int(node.text)
    if kind is float and node.plain and FLOAT.fullmatch(node.text):
        number = float(node.text)
        if math.isfinite(number):
            return number
    raise _wrong_type("a whole number" if kind is int else "a number", node, path)


def _text(node: ScalarNode, path: str) -> str:
    if not node.plain:
        return node.text
    _refuse_clock(node, path)
    if node.text in TRUTHS or INT.fullmatch(node.text) or FLOAT.fullmatch(node.text):
        raise UsageError(
            f"{path}: expected text, but YAML reads {node.text} as something else",
            where=node.where,
            fix=_quoting_hint(node, path),
        )
    if node.text in NULLS:
        raise _wrong_type("text", node, path)
    return node.text


def _quoting_hint(node: ScalarNode, path: str) -> str:
    if node.where.startswith("--set "):
        return f"quote it, and once more for the shell: --set '{path}=\"{node.text}\"'"
    return f'quote it: "{node.text}"'


def _free_scalar(node: Node, path: str) -> Scalar:
    if not isinstance(node, ScalarNode) or _is_null(node):
        raise _wrong_type("text, a number, true or false", node, path)
    if node.plain:
        for kind in (bool, int, float):
            try:
                value: Scalar = _scalar(kind, node, path)
            except UsageError:
                _refuse_clock(node, path)
            else:
                return value
    return _text(node, path)


def _refuse_clock(node: ScalarNode, path: str) -> None:
    if node.plain and CLOCK.fullmatch(node.text):
        raise UsageError(
            f"{path}: YAML reads {node.text} as a number to base 60",
            where=node.where,
            fix=f'write minutes, or quote it: "{node.text}"',
        )


def _choice(text: str, valid: tuple[str, ...], path: str, where: str) -> str:
    if text in valid:
        return text
    raise UsageError(
        f"{path}: {text!r} is not valid",
        where=where,
        valid=", ".join(valid),
        fix=did_you_mean(text, valid),
    )


def _check_written(limit: object, node: Node, path: str) -> None:
    if isinstance(limit, NotHere) and isinstance(node, ScalarNode) and node.text in limit.words:
        raise UsageError(
            f"{path}: {node.text!r} is not in this version",
            where=node.where,
            fix=limit.words[node.text],
        )
    if isinstance(limit, Keys) and isinstance(node, MapNode):
        for key in node.items:
            if key not in limit.valid:
                raise unknown_key(key, f"{path}.", limit.valid, node.key_where[key])


def _check_limit(limit: object, value: Any, path: str, where: str) -> None:
    if isinstance(limit, AtLeast):
        if isinstance(value, tuple) and len(value) < limit.low:
            raise UsageError(f"{path}: at least {limit.low:g} item is needed", where=where)
        if isinstance(value, (int, float)) and value < limit.low:
            raise UsageError(f"{path}: {value:g} is less than {limit.low:g}", where=where)
    if isinstance(limit, Shaped) and not re.fullmatch(limit.pattern, value):
        raise UsageError(f"{path}: {value!r} is not {limit.meaning}", where=where)


def _a_map(node: Node, path: str) -> MapNode:
    if not isinstance(node, MapNode):
        raise _wrong_type("a mapping {key: value}", node, path)
    return node


def _a_scalar(kind: Any, node: Node, path: str) -> ScalarNode:
    if not isinstance(node, ScalarNode):
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise _wrong_type(names.get(kind, "one word"), node, path)
    return node


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.plain and node.text in NULLS


def _wrong_type(expected: str, node: Node, path: str) -> UsageError:
    if isinstance(node, MapNode):
        found = "a mapping"
    elif isinstance(node, ListNode):
        found = "a list"
    elif _is_null(node):
        found = "nothing"
    else:
        found = repr(node.text[:80]) if node.plain else f"the text {node.text[:80]!r}"
    return UsageError(f"{path}: expected {expected}, found {found}", where=node.where)


def _record_default(kind: Any, path: str, sources: dict[str, str]) -> None:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            _record_default(hints[field.name], f"{path}.{field.name}", sources)
    else:
        sources[path] = DEFAULT
