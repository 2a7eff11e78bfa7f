"""What can be said of a candidate without running it: it parses, it has an entry, it has a size.

Never a defence: a program can hide anything from it. It only answers cheap mistakes in
milliseconds instead of seconds.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

from pike_hpc.records import EvalStatus

ENTRIES = ("ModelNew", "Model")
"""Names a candidate's class may have; the first found counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a candidate is not even started."""

    status: EvalStatus
    message: str


def screen(source: str) -> Refusal | None:
    """None when the candidate may be started."""
    try:
        source.encode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        line = f" in line {error.lineno}" if error.lineno else ""
        return Refusal(
            status=EvalStatus.BUILD_ERROR, message=f"not Python{line}: {printable(error.msg)}"
        )
    except UnicodeEncodeError:
        return Refusal(status=EvalStatus.BUILD_ERROR, message="not text that UTF-8 can hold")
    except (ValueError, RecursionError, MemoryError) as error:
        reason = printable(str(error)) or "nested too deeply"
        return Refusal(status=EvalStatus.BUILD_ERROR, message=f"not Python: {reason}")
    if not any(_binds(node) for node in ast.walk(tree)):
        return Refusal(
            status=EvalStatus.REJECTED,
            message="defines neither ModelNew nor Model: name the class that replaces the "
            "reference ModelNew",
        )
    return None


def printable(text: str, limit: int = 200) -> str:
    """One short line of hostile text, fit for a terminal."""
    line = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _binds(node: ast.AST) -> bool:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return node.name in ENTRIES
    if isinstance(node, ast.Name):
        return node.id in ENTRIES and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in ENTRIES or node.name == "*"
    return False
