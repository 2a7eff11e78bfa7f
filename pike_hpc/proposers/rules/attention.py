"""sdpa: attention that is written out becomes `scaled_dot_product_attention`.

Recognised in any forward: softmax over the last axis of `q @ k.transpose(-2, -1)`, scaled by
`*` or `/`, masked by `masked_fill(MASK == 0, -inf)`, with dropout, times v; in one expression
or over several assignments. Also an `nn.MultiheadAttention` whose weights are thrown away.
Knows no shapes: what it cannot read from the text it declines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pike_hpc.proposers.rules.draft import Draft, Rule, Setting
from pike_hpc.proposers.rules.reference import (
    ClassView,
    argument,
    blocks,
    classes,
    edited,
    kind,
    self_attribute,
)

LAST_AXES = ("(-2, -1)", "(-1, -2)", "(2, 3)", "(3, 2)")
MINUS_INFINITY = ("float('-inf')", "-float('inf')", "-torch.inf", "-math.inf")


@dataclass(slots=True)
class _Match:
    """What has been recognised of one attention, from the product with v inwards."""

    query: ast.expr
    key: ast.expr
    factor: ast.expr | None = None
    """What the scores are multiplied by, or divided by where `divides`."""
    divides: bool = False
    mask: ast.expr | None = None
    causal: bool = False
    dropout: str | None = None
    """Name of the Dropout layer."""
    consumed: list[ast.Assign] = field(default_factory=list)
    """Assignments that the call replaces."""

    def arguments(self, value: ast.expr) -> list[str]:
        """The arguments of scaled_dot_product_attention, as text."""
        texts = [ast.unparse(each) for each in (self.query, self.key, value)]
        if self.mask is not None:
            texts.append(
                "is_causal=True" if self.causal else f"attn_mask={ast.unparse(self.mask)} != 0"
            )
        if self.dropout is not None:
            texts.append(f"dropout_p=self.{self.dropout}.p if self.training else 0.0")
        factor = ast.unparse(self.factor) if self.factor else "1.0"
        return [*texts, f"scale=1.0 / ({factor})" if self.divides else f"scale={factor}"]

    def reads(self) -> set[str]:
        """Names that the call reads, beside v."""
        parts = [each for each in (self.query, self.key, self.factor, self.mask) if each]
        walked = (node for part in parts for node in ast.walk(part))
        return {node.id for node in walked if isinstance(node, ast.Name)}


def _sdpa(draft: Draft, setting: Setting) -> Draft | str:
    replacements: list[tuple[ast.AST, str]] = []
    for view in classes(draft.source):
        if view.forward is not None:
            for node in ast.walk(view.forward):
                for block in blocks(node):
                    replacements += _in_block(view, view.forward, block)
    if not replacements:
        return "no softmax(QK^T)V is written out, and no MultiheadAttention drops its weights"
    return draft.plus(imports=("import torch",), source=edited(draft.source, replacements))


def _in_block(
    view: ClassView, forward: ast.FunctionDef, block: Sequence[ast.stmt]
) -> Iterator[tuple[ast.AST, str]]:
    for position, statement in enumerate(block):
        if not isinstance(statement, ast.Assign | ast.Return) or statement.value is None:
            continue
        yield from _without_weights(view, forward, statement)
        product = _product(statement.value)
        match = _recognise(view, block[:position], product[0]) if product else None
        if product and match and _unused_elsewhere(forward, match.consumed, statement):
            yield statement.value, _call(match.arguments(product[1]), statement.col_offset)
            yield from ((consumed, "") for consumed in match.consumed)


def _recognise(view: ClassView, before: Sequence[ast.stmt], weights: ast.expr) -> _Match | None:
    """Follow the attention weights back to q and k, through assignments of this block."""
    match = _Match(query=weights, key=weights)
    left = list(before)
    node = _resolved(weights, left, match)
    node = _resolved(_dropout(view, node, match) or node, left, match)
    scores = _softmax(view, node)
    if scores is None:
        return None
    node = _resolved(scores, left, match)
    node = _resolved(_masked(view, node, match) or node, left, match)
    node = _resolved(_scaled(view, node, match) or node, left, match)
    product = _product(node)
    key = _transposed(product[1]) if product else None
    if product is None or key is None:
        return None
    match.query, match.key = product[0], key
    # What the call reads must still mean at its place what it meant where the scores were made.
    later = [each for each in before[len(left) :] if each not in match.consumed]
    changed = any(_stores(statement, name) for statement in later for name in match.reads())
    return None if changed else match


def _resolved(node: ast.expr, before: list[ast.stmt], match: _Match) -> ast.expr:
    """What a name stands for, by the last assignment before; drops what comes after it."""
    while isinstance(node, ast.Name):
        for at in reversed(range(len(before))):
            statement = before[at]
            if not _stores(statement, node.id):
                continue
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                return node
            if not isinstance(statement.targets[0], ast.Name):
                return node
            match.consumed.append(statement)
            node = statement.value
            del before[at:]
            break
        else:
            return node
    return node


def _dropout(view: ClassView, node: ast.expr, match: _Match) -> ast.expr | None:
    name = view.layer_called(node)
    if name is None or kind(view.layers[name]) != "Dropout" or not isinstance(node, ast.Call):
        return None
    match.dropout = name
    return node.args[0] if node.args else None


def _softmax(view: ClassView, node: ast.expr) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    if (name := view.layer_called(node)) is not None:
        made = view.layers[name]
        axis = argument(made, "dim", 0) if kind(made) == "Softmax" else None
        return node.args[0] if axis is not None and ast.unparse(axis) == "-1" else None
    if kind(node) != "softmax" or not isinstance(node.func, ast.Attribute):
        return None
    function = ast.unparse(node.func) in ("F.softmax", "torch.softmax", "nn.functional.softmax")
    axis = argument(node, "dim", 1 if function else 0)
    extra = {keyword.arg for keyword in node.keywords} - {"dim"}
    if axis is None or ast.unparse(axis) != "-1" or extra:
        return None
    return node.args[0] if function else node.func.value


def _masked(view: ClassView, node: ast.expr, match: _Match) -> ast.expr | None:
    """`scores.masked_fill(MASK == 0, -inf)`."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="masked_fill", value=scores),
            args=[
                ast.Compare(left=mask, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]),
                fill,
            ],
        ) if ast.unparse(fill) in MINUS_INFINITY:
            match.mask, match.causal = mask, _is_causal(view, mask)
            return scores
    return None


def _is_causal(view: ClassView, mask: ast.expr) -> bool:
    """Whether the mask is the top-left square of a lower-triangular buffer of ones."""
    if not isinstance(mask, ast.Subscript) or not isinstance(mask.slice, ast.Tuple):
        return False
    if len(mask.slice.elts) < 2 or (name := self_attribute(mask.value)) is None:
        return False
    rows, columns = (ast.unparse(each) for each in mask.slice.elts[-2:])
    return rows == columns and rows.startswith(":") and _is_tril(view, name)


def _is_tril(view: ClassView, name: str) -> bool:
    """Whether `register_buffer(name, ...)` gets torch.tril(torch.ones(...)), reshaped or not."""
    assigned: dict[str, ast.expr] = {}
    for node in ast.walk(view.node):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
    for node in ast.walk(view.node):
        if kind(node) != "register_buffer" or not isinstance(node, ast.Call):
            continue
        if len(node.args) < 2 or ast.unparse(node.args[0]) != repr(name):
            continue
        value = node.args[1]
        while True:
            if isinstance(value, ast.Name) and value.id in assigned:
                value = assigned.pop(value.id)
            elif kind(value) in ("view", "reshape", "unsqueeze", "bool") and isinstance(
                value, ast.Call
            ):
                value = value.func.value  # type: ignore[attr-defined]
            else:
                text = ast.unparse(value)
                plain = isinstance(value, ast.Call) and not argument(value, "diagonal", 1)
                return plain and text.startswith("torch.tril(torch.ones(")
    return False


def _scaled(view: ClassView, node: ast.expr, match: _Match) -> ast.expr | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div):
        return None
    match.divides = isinstance(node.op, ast.Div)
    for scores, factor in ((node.left, node.right), (node.right, node.left)):
        if _is_number(view, factor) and not (match.divides and factor is node.left):
            match.factor = factor
            return scores
    return None


def _is_number(view: ClassView, node: ast.expr) -> bool:
    """Whether the text alone says that this is a Python number, not a tensor."""
    parts: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.UnaryOp(operand=operand):
            parts = [operand]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="sqrt"), args=[value]):
            parts = [value]
        case ast.Attribute():
            return _is_scalar_attribute(view, self_attribute(node))
        case ast.Constant(value=int() | float()) | ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=ast.Attribute(attr="size"), args=[_]) | ast.Call(func=ast.Name("float")):
            return True
    return bool(parts) and all(_is_number(view, part) for part in parts)


def _is_scalar_attribute(view: ClassView, name: str | None) -> bool:
    """Whether every assignment of `self.name` is a number or made of plain names."""
    values = [
        node.value
        for node in ast.walk(view.node)
        if isinstance(node, ast.Assign) and self_attribute(node.targets[0]) == name
    ]
    made_by = {each for value in values for node in ast.walk(value) if (each := kind(node))}
    return name is not None and bool(values) and made_by <= {"sqrt", "int", "float"}


def _product(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(a, b) of `a @ b` and torch.matmul(a, b)."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if kind(node) == "matmul" and isinstance(node, ast.Call) and len(node.args) == 2:
        return node.args[0], node.args[1]
    return None


def _transposed(node: ast.expr) -> ast.expr | None:
    """The k of `k.transpose(-2, -1)` and `k.mT`."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if kind(node) != "transpose" or not isinstance(node, ast.Call):
        return None
    axes = f"({', '.join(ast.unparse(each) for each in node.args)})"
    fits = axes in LAST_AXES and isinstance(node.func, ast.Attribute)
    return node.func.value if fits else None  # type: ignore[attr-defined]


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )


def _unused_elsewhere(
    forward: ast.FunctionDef, consumed: Sequence[ast.Assign], final: ast.stmt
) -> bool:
    """Whether nothing but the attention itself reads the names that go away with it."""
    names = {each.targets[0].id for each in consumed}  # type: ignore[attr-defined]
    inside = {id(node) for each in (*consumed, final) for node in ast.walk(each)}
    rewritten = {
        target.id for target in getattr(final, "targets", []) if isinstance(target, ast.Name)
    }
    return not any(
        isinstance(node, ast.Name)
        and node.id in names - rewritten
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        for node in ast.walk(forward)
    )


def _call(arguments: Sequence[str], indent: int) -> str:
    space = " " * indent
    lines = "".join(f"{space}    {each},\n" for each in arguments)
    return f"torch.nn.functional.scaled_dot_product_attention(\n{lines}{space})"


def _without_weights(
    view: ClassView, forward: ast.FunctionDef, statement: ast.stmt
) -> Iterator[tuple[ast.AST, str]]:
    """`out, _ = self.attention(q, k, v)`: say that the weights are not needed."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
        return
    call, target = statement.value, statement.targets[0].elts
    name = view.layer_called(call)
    if name is None or kind(view.layers[name]) != "MultiheadAttention" or len(target) != 2:
        return
    dropped = target[1]
    reads = [
        node
        for node in ast.walk(forward)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    assert isinstance(call, ast.Call)
    said = any(keyword.arg == "need_weights" for keyword in call.keywords) or len(call.args) > 3
    if isinstance(dropped, ast.Name) and all(n.id != dropped.id for n in reads) and not said:
        yield call, f"{ast.unparse(call)[:-1]}, need_weights=False)"


ATTENTION = Rule(
    name="sdpa",
    summary="written-out attention becomes scaled_dot_product_attention",
    precondition="softmax(QK^T)V written out, or MultiheadAttention whose weights are dropped",
    apply=_sdpa,
)
