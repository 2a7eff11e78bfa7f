"""The reference's source as rules see it: classes, their layers, their forward; text edits.

Reads with `ast` only. A layer is what a class assigns as `self.NAME = something.Kind(...)`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CONVOLUTIONS = frozenset({"Conv1d", "Conv2d", "Conv3d"})
BATCH_NORMS = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"})


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class of the reference."""

    node: ast.ClassDef
    layers: Mapping[str, ast.Call]
    """Attribute name to the call that makes it, for attributes assigned exactly once."""
    forward: ast.FunctionDef | None

    def layer_called(self, node: ast.AST | None) -> str | None:
        """NAME where the expression is `self.NAME(...)` and NAME is a layer."""
        if not isinstance(node, ast.Call):
            return None
        name = self_attribute(node.func)
        return name if name in self.layers else None


def classes(source: str) -> tuple[ClassView, ...]:
    """The classes defined at module level, in order."""
    return tuple(
        _class_view(node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)
    )


def model_forward(source: str) -> ast.FunctionDef | None:
    """The forward of class Model, where that class defines it itself."""
    views = [view for view in classes(source) if view.node.name == "Model"]
    return views[-1].forward if views else None


def returns_one_value(source: str) -> bool:
    """Whether Model.forward returns no tuple, list or dict that is written out as such."""
    forward = model_forward(source)
    several = ast.Tuple | ast.List | ast.Dict
    return not any(
        isinstance(node, ast.Return) and isinstance(node.value, several)
        for node in (ast.walk(forward) if forward else ())
    )


def kind(node: ast.AST | None) -> str | None:
    """Conv2d of `nn.Conv2d(...)`: the last part of the name that is called."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument of a call by keyword or position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position < len(call.args) else None


def self_attribute(node: ast.AST) -> str | None:
    """NAME of `self.NAME`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None


def kinds_used(source: str) -> frozenset[str]:
    """The last part of every name that is called anywhere."""
    return frozenset(name for node in ast.walk(ast.parse(source)) if (name := kind(node)))


def successive(source: str) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Pairs of layers of which the second is seen to take the first one's output.

    Seen: neighbours in a list or an argument list (`nn.Sequential(a, b)`), neighbouring
    `layers.append(...)`, `self.b(self.a(x))`, and `x = self.a(x)` followed by `x = self.b(x)`.
    """
    for node in ast.walk(ast.parse(source)):
        neighbours: Sequence[ast.expr] = ()
        if isinstance(node, ast.Call):
            neighbours = node.args
        elif isinstance(node, ast.List | ast.Tuple):
            neighbours = node.elts
        yield from _calls(neighbours)
        for block in blocks(node):
            yield from _calls([_appended(statement) for statement in block])
    for view in classes(source):
        for first, second in _called_in_turn(view):
            yield view.layers[first], view.layers[second]


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly in a node."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block


def edited(
    source: str,
    replacements: Sequence[tuple[ast.AST, str]],
    before: Sequence[tuple[ast.stmt, str]] = (),
) -> str:
    """The source with the text of nodes replaced, and lines put before statements.

    Replaced nodes must not overlap; a statement replaced by nothing goes with its line.
    """
    lines = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", source.encode())
    starts = [0, *itertools.accumulate(len(line) for line in lines)]
    spans = []
    for node, new in replacements:
        first = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        last = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        if not new and isinstance(node, ast.stmt):
            first, last = starts[node.lineno - 1], starts[node.end_lineno or node.lineno]
        spans.append((first, last, new))
    for statement, line in before:
        at = starts[statement.lineno - 1]
        spans.append((at, at, f"{' ' * statement.col_offset}{line}\n"))
    text = source.encode()
    for first, last, new in sorted(spans, reverse=True):
        text = text[:first] + new.encode() + text[last:]
    return text.decode()


def _class_view(node: ast.ClassDef) -> ClassView:
    made: dict[str, list[ast.expr]] = {}
    for statement in ast.walk(node):
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if name := self_attribute(target):
                    made.setdefault(name, []).append(statement.value)
    layers = {
        name: values[0]
        for name, values in made.items()
        if len(values) == 1 and isinstance(values[0], ast.Call)
    }
    forwards = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    return ClassView(node, layers, forwards[-1] if forwards else None)


def _calls(neighbours: Sequence[ast.AST | None]) -> Iterator[tuple[ast.Call, ast.Call]]:
    for first, second in itertools.pairwise(neighbours):
        if isinstance(first, ast.Call) and isinstance(second, ast.Call):
            yield first, second


def _appended(statement: ast.stmt) -> ast.AST | None:
    """The argument of `something.append(argument)`."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.args[0] if isinstance(value, ast.Call) and kind(value) == "append" else None


def _called_in_turn(view: ClassView) -> Iterator[tuple[str, str]]:
    """Names of layers of which the second is called on the first one's output."""
    for node in ast.walk(view.node):
        outer = view.layer_called(node)
        first_argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        inner = view.layer_called(first_argument)
        if inner and outer:
            yield inner, outer
        for block in blocks(node):
            for first, second in itertools.pairwise(block):
                if (pair := _assigned_in_turn(view, first, second)) is not None:
                    yield pair


def _assigned_in_turn(view: ClassView, first: ast.stmt, second: ast.stmt) -> tuple[str, str] | None:
    if not isinstance(first, ast.Assign) or not isinstance(second, ast.Assign | ast.Return):
        return None
    outer_call = second.value
    while isinstance(outer_call, ast.Call) and outer_call.args:
        inner, outer = view.layer_called(first.value), view.layer_called(outer_call)
        target, argument_ = first.targets[0], outer_call.args[0]
        if isinstance(target, ast.Name) and isinstance(argument_, ast.Name):
            return (inner, outer) if inner and outer and target.id == argument_.id else None
        outer_call = argument_
    return None
