"""YAML text in, located nodes out. Strict about form; knows no key of any schema.

Every node remembers where it was written ("file:line", an environment variable, a --set), so
that any later complaint can name the place. What PyYAML would silently accept and change
(duplicate keys, anchors, tags) is refused here; what a plain scalar means is `schema`'s matter,
because it depends on the type that is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pike_hpc.records import UsageError

MAX_BYTES = 1_000_000
"""A configuration is small; anything larger is a file named by mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarNode:
    """One value as written. `plain` is False where it stands in quotes or a block."""

    text: str
    plain: bool
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListNode:
    """A sequence of nodes."""

    items: tuple[Node, ...]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A mapping with text keys. `key_where` holds the place of each key."""

    items: Mapping[str, Node]
    key_where: Mapping[str, str] = field(default_factory=dict)
    where: str


Node = ScalarNode | ListNode | MapNode


def read_file(path: Path) -> MapNode:
    """The mapping in a YAML file. Raises UsageError naming file and line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        near = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise UsageError(
            f"cannot read {path}: {error.strerror}", where=str(path), valid=", ".join(near) or None
        ) from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{len(raw)} bytes is no configuration file", where=str(path))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError("not UTF-8 text", where=f"{path}:{line}") from None
    return parse_mapping(text, str(path))


def parse_mapping(text: str, name: str) -> MapNode:
    """The mapping that a whole document is. `name` stands for the file in messages."""
    node = _compose(text, name, None)
    if node is None:
        raise UsageError(
            "the file is empty",
            where=f"{name}:1",
            fix="copy workflows/quickstart.yaml, or for a site site_configs/template.yaml",
        )
    found = _convert(node, name, None)
    if not isinstance(found, MapNode):
        raise UsageError("expected `key: value` lines at the top of the file", where=found.where)
    return found


def parse_value(text: str, where: str) -> Node:
    """One value given on a command line or in the environment, read as in a file."""
    node = _compose(text, where, where)
    if node is None:
        return ScalarNode(text="", plain=True, where=where)
    return _convert(node, where, where)


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases and tags: what is written is what is read."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
        refused = None
        if getattr(event, "anchor", None) is not None:
            refused = "anchors and aliases are not read"
        elif getattr(event, "tag", None) is not None:
            refused = f"tags are not read: {event.tag}"
        if refused:
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        return super().compose_node(parent, index)


def _compose(text: str, name: str, fixed: str | None) -> Any:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = error.problem or "unreadable"
        fix = "indent with spaces, not with tabs" if "\\t" in problem else None
        raise UsageError(f"not YAML: {problem}", where=fixed or f"{name}:{line}", fix=fix) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError("not YAML: a control character", where=fixed or f"{name}:{line}") from None
    except RecursionError:
        raise UsageError("not YAML that a person wrote: nested too deeply", where=name) from None


def _convert(node: Any, name: str, fixed: str | None) -> Node:
    where = fixed or f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return ScalarNode(text=node.value, plain=node.style is None, where=where)
    if isinstance(node, yaml.SequenceNode):
        return ListNode(items=tuple(_convert(n, name, fixed) for n in node.value), where=where)
    items: dict[str, Node] = {}
    places: dict[str, str] = {}
    for key_node, value_node in node.value:
        place = fixed or f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError("a key is one word, not a list or mapping", where=place)
        key = key_node.value
        if key in items:
            raise UsageError(
                f"duplicate key {key!r}, first at {places[key]}",
                where=place,
                fix="keep one of them",
            )
        items[key] = _convert(value_node, name, fixed)
        places[key] = place
    return MapNode(items=items, key_where=places, where=where)
