"""The terms of written-out attention, each recognised in one expression.

Given an expression, a function here says what is left when its term is taken off, or None.
Knows no statements: `attention` follows assignments.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pike_hpc.proposers.rules.reference import ClassView, argument, kind, self_attribute

LAST_AXES = ("(-2, -1)", "(-1, -2)", "(2, 3)", "(3, 2)")
MINUS_INFINITY = ("float('-inf')", "-float('inf')", "-torch.inf", "-math.inf")


@dataclass(slots=True)
class Attention:
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


def dropout(view: ClassView, node: ast.expr, match: Attention) -> ast.expr | None:
    """What a Dropout layer is applied to."""
    name = view.layer_called(node)
    if name is None or kind(view.layers[name]) != "Dropout" or not isinstance(node, ast.Call):
        return None
    match.dropout = name
    return node.args[0] if node.args else None


def softmax(view: ClassView, node: ast.expr) -> ast.expr | None:
    """What a softmax over the last axis is applied to."""
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


def masked(view: ClassView, node: ast.expr, match: Attention) -> ast.expr | None:
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


def scaled(view: ClassView, node: ast.expr, match: Attention) -> ast.expr | None:
    """What is multiplied or divided by a number."""
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


def product(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(a, b) of `a @ b` and torch.matmul(a, b)."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if kind(node) == "matmul" and isinstance(node, ast.Call) and len(node.args) == 2:
        return node.args[0], node.args[1]
    return None


def transposed(node: ast.expr) -> ast.expr | None:
    """The k of `k.transpose(-2, -1)` and `k.mT`."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if kind(node) != "transpose" or not isinstance(node, ast.Call):
        return None
    axes = f"({', '.join(ast.unparse(each) for each in node.args)})"
    fits = axes in LAST_AXES and isinstance(node.func, ast.Attribute)
    return node.func.value if fits else None  # type: ignore[attr-defined]
