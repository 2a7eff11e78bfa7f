"""A task file as text: what it defines, its module-level integers, and their replacement.

Reads source with `ast` only: nothing is executed and no torch is needed. Knows nothing of
suites or folders.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from pike_hpc.records import Task, UsageError

MAX_EXPONENT = 64
"""Powers and shifts beyond this are no tensor shape and are not evaluated."""

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


def defects(source: str) -> str | None:
    """Why the text is no task in KernelBench's format, or None where it is one.

    A task defines a class `Model` and a function `get_inputs` (and, where the constructor
    takes arguments, `get_init_inputs`, which only a run can tell).
    """
    if not source.strip():
        return "the file is empty"
    try:
        tree = _parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        return f"not parsable: {reason}" + (f" (line {line})" if line else "")
    names = _defined_names(tree.body)
    if "*" in names:  # from somewhere import *: only a run can tell
        return None
    wanted = {"Model": "class Model", "get_inputs": "function get_inputs"}
    missing = [text for name, text in wanted.items() if name not in names]
    return f"defines no {' and no '.join(missing)}" if missing else None


def module_integers(source: str) -> dict[str, int]:
    """Name to value of the integers assigned at module level, in order of appearance.

    Simple arithmetic on integers and on earlier such names counts: `N = 2 * 1024`.
    """
    return {name: value for name, _, value in _integer_assignments(_parse(source))}


def apply_overrides(source: str, overrides: Mapping[str, int]) -> str:
    """The source with module-level integers replaced; every other character is kept.

    Raises:
        UsageError: a name that is no module-level integer of the source, or a value below 1.
    """
    if not overrides:
        return source
    check_overrides(source, overrides, where=None)
    lines = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", source.encode())
    # From the last to the first, so that earlier positions stay true.
    for name, node, _ in reversed(list(_integer_assignments(_parse(source)))):
        if name not in overrides:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first][: node.col_offset]
        tail = lines[last][node.end_col_offset :]
        lines[first : last + 1] = [head + str(overrides[name]).encode() + tail]
    return b"".join(lines).decode()


def check_overrides(source: str, overrides: Mapping[str, int], *, where: str | None) -> None:
    """Raise UsageError unless each override names a module-level integer and is 1 or more."""
    known = module_integers(source)
    for name, value in overrides.items():
        if name not in known:
            raise UsageError(
                f"shape override {name!r} names no module-level integer of the task",
                where=where,
                valid=", ".join(f"{k} (now {v})" for k, v in known.items()) or "none: it has none",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(
                f"shape override {name}={value!r} is not a positive integer", where=where
            )


def effective_source(task: Task) -> str:
    """The task's source with its shape overrides applied: what is run, shown and rewritten."""
    return apply_overrides(task.source, task.shape_overrides)


def _parse(source: str) -> ast.Module:
    """The tree, without the compiler's word about odd escapes in someone's docstring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _defined_names(body: Sequence[ast.stmt]) -> set[str]:
    """Classes, functions, imports and variables of the module, those under if and try included."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            blocks = [node, *(node.handlers if isinstance(node, ast.Try) else [])]
            for block in blocks:
                for part in ("body", "orelse", "finalbody"):
                    names |= _defined_names(getattr(block, part, []))
    return names


def _integer_assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    """(name, the expression assigned, its value), top to bottom."""
    known: dict[str, int] = {}
    for node in tree.body:
        for name, expression in _assignments(node):
            value = _integer(expression, known)
            if value is None:
                known.pop(name, None)
            else:
                known[name] = value
                yield name, expression, value


def _assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """`a = x`, `a: int = x` and `a, b = x, y`."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for left, right in zip(target.elts, value.elts, strict=False):
                if isinstance(left, ast.Name):
                    yield left.id, right


def _integer(node: ast.expr, known: Mapping[str, int]) -> int | None:
    """The value of an integer expression, None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _integer(node.left, known), _integer(node.right, known)
    if left is None or right is None or not _bounded(node.op, right):
        return None
    return _OPERATORS[type(node.op)](left, right)


def _bounded(op: ast.operator, right: int) -> bool:
    """Whether the operation is defined and its result of a tensor shape's size."""
    if isinstance(op, ast.Pow | ast.LShift):
        return 0 <= right <= MAX_EXPONENT
    return not (isinstance(op, ast.FloorDiv) and right == 0)
