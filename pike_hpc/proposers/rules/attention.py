"""sdpa: attention that is written out becomes `scaled_dot_product_attention`.

Recognised in any forward: softmax over the last axis of `q @ k.transpose(-2, -1)`, scaled by
`*` or `/`, masked by `masked_fill(MASK == 0, -inf)`, with dropout, times v; in one expression
or over several assignments. Also an `nn.MultiheadAttention` whose weights are thrown away.
Knows no shapes: what it cannot read from the text it declines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pike_hpc.proposers.rules.attention_terms import (
    Attention,
    dropout,
    masked,
    product,
    scaled,
    softmax,
    transposed,
)
from pike_hpc.proposers.rules.draft import Draft, Rule, Setting
from pike_hpc.proposers.rules.reference import ClassView, blocks, classes, edited, kind


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
        factors = product(statement.value)
        match = _recognise(view, block[:position], factors[0]) if factors else None
        if factors and match and _unused_elsewhere(forward, match.consumed, statement):
            yield statement.value, _call(match.arguments(factors[1]), statement.col_offset)
            yield from ((consumed, "") for consumed in match.consumed)


def _recognise(view: ClassView, before: Sequence[ast.stmt], weights: ast.expr) -> Attention | None:
    """Follow the attention weights back to q and k, through assignments of this block."""
    match = Attention(query=weights, key=weights)
    left = list(before)
    node = _resolved(weights, left, match)
    node = _resolved(dropout(view, node, match) or node, left, match)
    scores = softmax(view, node)
    if scores is None:
        return None
    node = _resolved(scores, left, match)
    node = _resolved(masked(view, node, match) or node, left, match)
    node = _resolved(scaled(view, node, match) or node, left, match)
    factors = product(node)
    key = transposed(factors[1]) if factors else None
    if factors is None or key is None:
        return None
    match.query, match.key = factors[0], key
    # What the call reads must still mean at its place what it meant where the scores were made.
    later = [each for each in before[len(left) :] if each not in match.consumed]
    changed = any(_stores(statement, name) for statement in later for name in match.reads())
    return None if changed else match


def _resolved(node: ast.expr, before: list[ast.stmt], match: Attention) -> ast.expr:
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


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )


def _unused_elsewhere(
    forward: ast.FunctionDef, consumed: Sequence[ast.Assign], final: ast.stmt
) -> bool:
    """Whether nothing but the attention itself reads the values that go away with it."""
    names = {each.targets[0].id for each in consumed}  # type: ignore[attr-defined]
    own = {id(node) for each in (*consumed, final) for node in ast.walk(each)}
    start = min((each.lineno for each in consumed), default=final.lineno)
    renewed = {
        target.id for target in getattr(final, "targets", []) if isinstance(target, ast.Name)
    }

    def is_gone(node: ast.AST) -> bool:
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store) or id(node) in own:
            return False
        after = node.id in renewed and node.lineno > final.lineno
        return node.id in names and node.lineno > start and not after

    return not any(is_gone(node) for node in ast.walk(forward))


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
