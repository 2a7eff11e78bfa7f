"""packed_linear: layers that read the same input become one layer with all their weights.

Linear layers, or Conv2d layers that keep the size of the image: smaller kernels are centred in
the largest. Where the outputs are concatenated anyway, in order, the concatenation goes too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pike_hpc.proposers.rules.draft import Draft, Rule, Setting
from pike_hpc.proposers.rules.reference import (
    ClassView,
    argument,
    blocks,
    classes,
    edited,
    kind,
)

PACKED_LINEAR = '''
def packed_linear(owner, names, x):
    """The outputs of these Linear layers, joined, from one product with all their weights."""
    layers = [getattr(owner, name) for name in names]
    if owner.training:
        return torch.cat([layer(x) for layer in layers], dim=-1)
    if not hasattr(owner, "packed"):
        owner.packed = {}
    if names not in owner.packed:
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        owner.packed[names] = torch.cat([layer.weight for layer in layers]), bias
    return torch.nn.functional.linear(x, *owner.packed[names])
'''

PACKED_CONV = '''
def packed_conv(owner, names, x):
    """The outputs of these Conv2d layers, joined, from one convolution with all their weights."""
    layers = [getattr(owner, name) for name in names]
    if owner.training:
        return torch.cat([layer(x) for layer in layers], dim=1)
    radius = max(layer.kernel_size[0] for layer in layers) // 2
    if not hasattr(owner, "packed"):
        owner.packed = {}
    if names not in owner.packed:
        margins = [radius - layer.kernel_size[0] // 2 for layer in layers]
        weights = [
            torch.nn.functional.pad(layer.weight, [margin] * 4)
            for layer, margin in zip(layers, margins)
        ]
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        owner.packed[names] = torch.cat(weights), bias
    weight, bias = owner.packed[names]
    return torch.nn.functional.conv2d(x, weight, bias, layers[0].stride, radius)
'''

ELEMENTWISE = frozenset({"ReLU", "ReLU6", "GELU", "SiLU", "Sigmoid", "Tanh", "Hardswish"})
"""Layers that do the same to each number, so that they commute with concatenation."""

SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls of compatible layers on one input, and the statement that makes the first."""

    calls: tuple[ast.Call, ...]
    names: tuple[str, ...]
    kind: str
    """Linear or Conv2d."""
    first: ast.stmt
    input: str

    @property
    def packed(self) -> str:
        """The call that makes the joined output."""
        function = "packed_linear" if self.kind == "Linear" else "packed_conv"
        names = ", ".join(f'"{name}"' for name in self.names)
        return f"{function}(self, ({names}), {self.input})"


def _packed_linear(draft: Draft, setting: Setting) -> Draft | str:
    replacements: list[tuple[ast.AST, str]] = []
    insertions: list[tuple[ast.stmt, str]] = []
    used = set()
    for view in classes(draft.source):
        for group in _groups(view):
            used.add(group.kind)
            joined = _joined(view, group)
            if joined is not None:
                replacements.append(joined)
                continue
            names = [_fresh(view, name) for name in group.names]
            replacements += zip(group.calls, names, strict=True)
            insertions.append((group.first, f"{', '.join(names)} = {_split(group)}"))
    if not used:
        return "no two layers of one kind read the same input"
    helpers = {"Linear": PACKED_LINEAR, "Conv2d": PACKED_CONV}
    return draft.plus(
        source=edited(draft.source, replacements, insertions),
        imports=("import torch",),
        helpers=tuple(helpers[each] for each in sorted(used)),
        warm_up=True,
    )


def _groups(view: ClassView) -> Iterator[_Group]:
    """Groups of two or more compatible calls in one block of forward."""
    for node in ast.walk(view.forward) if view.forward else ():
        for block in blocks(node):
            found: dict[tuple[str, ...], list[tuple[ast.Call, ast.stmt]]] = {}
            for statement in block:
                for call in _layer_calls(statement):
                    if (key := _compatibility(view, call)) is not None:
                        found.setdefault(key, []).append((call, statement))
                stored = _stored(statement)
                for key in [k for k in found if stored is None or k[0] in stored]:
                    yield from _group(view, key, found.pop(key))
            for key, members in found.items():
                yield from _group(view, key, members)


def _group(
    view: ClassView, key: tuple[str, ...], members: Sequence[tuple[ast.Call, ast.stmt]]
) -> Iterator[_Group]:
    names = tuple(str(view.layer_called(call)) for call, _ in members)
    if len(names) > 1 and len(set(names)) == len(names):
        yield _Group(
            calls=tuple(call for call, _ in members),
            names=names,
            kind=key[1],
            first=members[0][1],
            input=key[0],
        )


def _layer_calls(statement: ast.stmt) -> list[ast.Call]:
    """The calls in a simple statement, in order of the text."""
    if not isinstance(statement, SIMPLE) or _has_scope(statement):
        return []
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _stored(statement: ast.stmt) -> set[str] | None:
    """Names that a simple statement assigns; None where anything may happen."""
    if not isinstance(statement, SIMPLE) or _has_scope(statement):
        return None
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _has_scope(statement: ast.stmt) -> bool:
    """Whether names inside may mean something else: lambdas and comprehensions."""
    scopes = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    return any(isinstance(node, scopes) for node in ast.walk(statement))


def _compatibility(view: ClassView, call: ast.Call) -> tuple[str, ...] | None:
    """(input, kind, what else must agree) of `self.layer(input)`; None for other calls."""
    name = view.layer_called(call)
    if name is None or len(call.args) != 1 or call.keywords:
        return None
    if not isinstance(call.args[0], ast.Name):
        return None
    made, read = view.layers[name], call.args[0].id
    if kind(made) == "Linear":
        return read, "Linear", _text(argument(made, "bias", 2), "True")
    if kind(made) == "Conv2d" and _keeps_size(made):
        stride = _text(argument(made, "stride", 3), "1")
        return read, "Conv2d", stride, _text(argument(made, "bias", 7), "True")
    return None


def _keeps_size(made: ast.Call) -> bool:
    """Whether a Conv2d has an odd square kernel, padded by its radius, and nothing special."""
    size, padding = argument(made, "kernel_size", 2), argument(made, "padding", 4)
    special = {"dilation", "groups", "padding_mode", "device", "dtype"}
    if len(made.args) > 5 or special & {str(keyword.arg) for keyword in made.keywords}:
        return False
    try:
        return int(_text(size, "")) == 2 * int(_text(padding, "0")) + 1
    except ValueError:
        return False


def _joined(view: ClassView, group: _Group) -> tuple[ast.AST, str] | None:
    """The `torch.cat` of the group's outputs, in order, and what takes its place."""
    axis = "-1" if group.kind == "Linear" else "1"
    for node in ast.walk(group.first):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr="cat" | "concat"),
                args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_],
            ) if _text(argument(node, "dim", 1), "0") == axis and len(parts) == len(group.calls):
                wrappers = [
                    _wrapper(view, part, call)
                    for part, call in zip(parts, group.calls, strict=True)
                ]
                if None not in wrappers and len({each[0] for each in wrappers if each}) == 1:
                    function = wrappers[0][1] if wrappers[0] else ""
                    return node, f"{function}({group.packed})" if function else group.packed
    return None


def _wrapper(view: ClassView, part: ast.expr, call: ast.Call) -> tuple[str, str] | None:
    """(what is done, its text) to the call's output elementwise; None for anything else."""
    if part is call:
        return "", ""
    if not isinstance(part, ast.Call) or part.args != [call] or part.keywords:
        return None
    text = ast.unparse(part.func)
    if (name := view.layer_called(part)) is not None:
        made = view.layers[name]
        return (ast.unparse(made), text) if kind(made) in ELEMENTWISE else None
    return (text, text) if text in ("F.relu", "torch.relu", "F.gelu", "F.silu") else None


def _split(group: _Group) -> str:
    size, axis = ("out_features", -1) if group.kind == "Linear" else ("out_channels", 1)
    sizes = ", ".join(f"self.{name}.{size}" for name in group.names)
    return f"{group.packed}.split([{sizes}], dim={axis})"


def _fresh(view: ClassView, name: str) -> str:
    """A local name for a layer's output that the class does not use."""
    taken = {node.id for node in ast.walk(view.node) if isinstance(node, ast.Name)}
    fresh = f"{name}_output"
    while fresh in taken:
        fresh += "_"
    return fresh


def _text(node: ast.expr | None, default: str) -> str:
    return default if node is None else ast.unparse(node)


PARALLEL = Rule(
    name="packed_linear",
    summary="layers that read the same input become one layer with all their weights",
    precondition="two Linear layers, or two Conv2d that keep the image's size, on one input",
    apply=_packed_linear,
)
