"""What an admission depends on, beside the task: a digest that makes a measured table stale.

No torch. A task's own part is its digest (`Task.digest`): source, variant, overrides,
calibration.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from pike_hpc.records import digest

PACKAGE = Path(__file__).resolve().parents[1]

MODULES = (
    "evaluate/admission.py",
    "evaluate/buffers.py",
    "evaluate/correctness.py",
    "evaluate/judge_admission.py",
    "evaluate/judge_arithmetic.py",
    "evaluate/judge_balance.py",
    "evaluate/judge_calm.py",
    "evaluate/judge_constructor.py",
    "evaluate/judge_faint.py",
    "evaluate/judge_frame.py",
    "evaluate/judge_fresh.py",
    "evaluate/judge_memory.py",
    "evaluate/judge_moves.py",
    "evaluate/judge_mutants.py",
    "evaluate/judge_mutants_addends.py",
    "evaluate/judge_mutants_parts.py",
    "evaluate/judge_operations.py",
    "evaluate/judge_other_weights.py",
    "evaluate/judge_range.py",
    "evaluate/judge_scores.py",
    "evaluate/judge_secrets.py",
    "evaluate/judge_sharpen.py",
    "evaluate/judge_signal.py",
    "evaluate/judge_size.py",
    "evaluate/judge_structure.py",
    "evaluate/judge_truth.py",
    "evaluate/judge_turned.py",
    "evaluate/judge_units.py",
    "evaluate/judge_unread.py",
    "evaluate/judge_variety.py",
    "evaluate/judge_weights.py",
    "evaluate/judge_widen.py",
    "evaluate/layout.py",
    "evaluate/pieces.py",
    "evaluate/runner/state.py",
    "evaluate/runner/trees.py",
    "machine/memory.py",
    "tasks/load.py",
    "tasks/source.py",
)
"""Files of the package whose change may change what `tasks check` finds."""


def code_digest(package: Path = PACKAGE, modules: tuple[str, ...] = MODULES) -> str:
    """sha256 over names and code of the modules. Raises OSError where one is absent."""
    parts: list[str | bytes] = []
    for name in modules:
        parts += [name, code_of((package / name).read_text("utf-8"))]
    return digest(*parts)


def code_of(source: str) -> str:
    """A module without comments, docstrings, other lone texts, and empty lines outside of texts.

    So that who explains something better need not borrow a GPU. The same for each Python.
    """
    lines = io.StringIO(source).readlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    raw = [line.encode() for line in lines]  # columns of ast are bytes
    texts = list(_texts(ast.parse(b"".join(raw))))
    lone = [node for node in texts if isinstance(node, ast.Expr)]
    others = [node for node in texts if not isinstance(node, ast.Expr)]
    kept = {n for node in others for n in range(node.lineno - 1, (node.end_lineno or 0) - 1)}
    for node in sorted(lone, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        rest = raw[first][: node.col_offset] + raw[last][node.end_col_offset :]
        raw[first : last + 1] = [rest, *[b""] * (last - first)]  # all others keep their numbers
    return b"".join(line for n, line in enumerate(raw) if line.strip() or n in kept).decode()


def _texts(node: ast.AST) -> Iterator[ast.Expr | ast.expr]:
    """Texts that are statements by themselves, and all others, an f-string as one."""
    for child in ast.iter_child_nodes(node):
        match child:
            case (
                ast.Expr(value=ast.Constant(value=str() | bytes()))
                | ast.Constant(value=str() | bytes())
                | ast.JoinedStr()
            ):
                yield child
            case _:
                yield from _texts(child)
