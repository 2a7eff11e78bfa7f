"""One layer of configuration over another: files, environment, command line.

Mappings are merged key by key, everything else is replaced whole. Every node keeps its place,
so the merged tree still knows who said what. Knows the sections of the two schemas by name only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pike_hpc.config.schema import unknown_key
from pike_hpc.config.yaml_source import MapNode, Node, parse_value
from pike_hpc.records import UsageError

WORKFLOW_SECTIONS = ("tasks", "search", "budget", "models", "evaluate", "workers")
SITE_SECTIONS = (
    "account",
    "account_gpu_suffix",
    "scheduler",
    "identify",
    "paths",
    "container",
    "worker_job",
    "agent",
    "mailbox",
    "setup",
)
SECTIONS = WORKFLOW_SECTIONS + SITE_SECTIONS
"""What environment and command line may override; a file's name and version are its own."""

PREFIX = "PIKE_"
SINGLE = ("account", "account_gpu_suffix", "scheduler")
"""Sections that are one value: PIKE_ACCOUNT. All others need PIKE_SECTION__KEY."""

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


def merge(base: MapNode, over: MapNode) -> MapNode:
    """`over` upon `base`."""
    items: dict[str, Node] = dict(base.items)
    for key, node in over.items.items():
        old = items.get(key)
        both = isinstance(old, MapNode) and isinstance(node, MapNode)
        items[key] = merge(old, node) if both else node  # type: ignore[arg-type]  # both maps
    places = {**base.key_where, **over.key_where}
    return MapNode(items=items, key_where=places, where=base.where)


def from_environment(environ: Mapping[str, str]) -> tuple[MapNode, ...]:
    """A layer per PIKE_SECTION__KEY (and PIKE_ACCOUNT, PIKE_SCHEDULER), sorted by name.

    Other PIKE_ names belong to other parts of the program and are passed over.
    """
    layers = []
    for name in sorted(environ):
        key = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX) and ("__" in key or key in SINGLE):
            layers.append(_layer(key.split("__"), environ[name], f"environment {name}"))
    return tuple(layers)


def from_sets(sets: Sequence[str], inner: Sequence[str] = ()) -> tuple[MapNode, ...]:
    """A layer per `a.b=value` of the command line, in the order given.

    Args:
        sets: as they were typed.
        inner: keys inside sections, such as `a.b`, that are named to who typed only `b`.
    """
    layers = []
    for text in sets:
        key, equals, value = text.partition("=")
        where = f"--set {text}"
        if not equals or not key:
            raise UsageError(
                "--set needs KEY=VALUE", where=where, fix="for example --set workers.count=2"
            )
        _refuse_without_section(key, inner, where)
        layers.append(_layer(key.split("."), value, where))
    return tuple(layers)


def _refuse_without_section(key: str, inner: Sequence[str], where: str) -> None:
    whole = [name for name in inner if name.partition(".")[2] == key]
    if whole and key not in SECTIONS:
        raise UsageError(
            f"unknown key {key!r}",
            where=where,
            valid=", ".join(whole),
            fix=f"did you mean {' or '.join(map(repr, whole))}?",
        )


def section_of(layer: MapNode) -> str:
    """The one section that a layer of environment or command line touches."""
    return next(iter(layer.items))


def fill_in(text: str, environ: Mapping[str, str], where: str) -> str:
    """`text` with $VARIABLES and a leading ~ filled in. Raises UsageError for an unset one."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise UsageError(
                f"${name} is not set, and {text!r} needs it",
                where=where,
                fix=f"export {name}=…, or write the path out in your own site file",
            )
        return environ[name]

    if text == "~" or text.startswith("~/"):
        text = "$HOME" + text[1:]
    return VARIABLE.sub(value, text)


def _layer(path: list[str], text: str, where: str) -> MapNode:
    if path[0] not in SECTIONS:
        raise unknown_key(path[0], "", SECTIONS, where)
    node: Node = parse_value(text, where)
    for key in reversed(path):
        node = MapNode(items={key: node}, key_where={key: where}, where=where)
    assert isinstance(node, MapNode)
    return node
