"""Answers: ideas and programs read from whatever a model wrote.

Contract: any text at all gives a result, never an exception. A program is the last complete
```python block that defines `ModelNew` at its top level; text that merely looks like code, or was
cut off, is no program and the reason says why. The text is only parsed, never run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from pike_hpc.proposers.agents.fence import one_line
from pike_hpc.records import MAX_SOURCE_BYTES

MAX_IDEA_CHARS = 1_000

TRUNCATED = frozenset({"length", "max_tokens", "MAX_TOKENS"})
"""Finish reasons by which providers say that the token limit cut the answer off."""

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_ITEM = re.compile(r"^(\s*)(?:[-*+\u2022\u2013]|\(?\d{1,3}[.):])\s+(.*)$")
_PYTHON = frozenset({"python", "py", "python3", ""})
_CLASS = "ModelNew"


@dataclass(frozen=True, slots=True)
class Program:
    """Source that parses and defines ModelNew."""

    source: str


@dataclass(frozen=True, slots=True)
class NoProgram:
    """Why an answer holds none: one sentence that a repair prompt can quote."""

    reason: str


def extract_program(text: str, finish_reason: str) -> Program | NoProgram:
    """The program in an answer, or why there is none."""
    cut = finish_reason in TRUNCATED
    if not text.strip():
        why = "the token limit was used up before any text" if cut else "the answer is empty"
        return NoProgram(f"No program: {why}.")
    blocks, unclosed = _blocks(text)
    if cut and unclosed:
        return NoProgram("No program: the answer was cut off by the token limit; write less.")
    reason = "the answer has no complete ```python block"
    for block in reversed(blocks):
        problem = _problem(block)
        if problem is None:
            return Program(block)
        if reason.startswith("the answer has"):
            reason = problem
    if unclosed:
        reason = "the last code block was not closed, so the answer seems incomplete"
    elif cut:
        reason += " and was cut off by the token limit"
    return NoProgram(f"No program: {reason}.")


def parse_ideas(text: str, limit: int) -> tuple[str, ...]:
    """Up to `limit` different ideas from a list with -, *, + or numbers, else from paragraphs."""
    items = list(_items(text)) or list(_paragraphs(text))
    lines = (one_line(item.replace("**", ""), MAX_IDEA_CHARS) for item in items)
    return tuple(dict.fromkeys(line for line in lines if line))[: max(0, limit)]


def _blocks(text: str) -> tuple[list[str], bool]:
    """The closed python blocks of a text, and whether a block is left open at its end."""
    blocks: list[str] = []
    fence, language, body = "", "", []  # type: tuple[str, str, list[str]]
    for line in text.replace("\r\n", "\n").split("\n"):
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence, language, body = mark[1], mark[2].strip().split(" ")[0].lower(), []
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            if language in _PYTHON:
                blocks.append("\n".join(body) + "\n")
            fence = ""
        else:
            body.append(line)
    return blocks, bool(fence)


def _problem(source: str) -> str | None:
    """What keeps a block from being a program."""
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES // 2:
        return f"the program is longer than {MAX_SOURCE_BYTES // 2} bytes"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return f"the program has a syntax error in line {error.lineno}: {one_line(error.msg, 200)}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the program can't be parsed: {one_line(str(error) or type(error).__name__, 200)}"
    if any(_CLASS in _names(node) for node in tree.body):
        return None
    return f"the program does not define class {_CLASS}"


def _names(node: ast.stmt) -> set[str]:
    """What a statement at the top level defines."""
    if isinstance(node, ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def _items(text: str) -> Iterator[str]:
    """List items at the outermost level, with their continuation lines."""
    item: list[str] | None = None
    outer: int | None = None
    for line in text.splitlines():
        mark = _ITEM.match(line)
        indent = len(mark[1].expandtabs()) if mark else 0
        if mark and (outer is None or indent <= outer):
            outer = indent if outer is None else min(outer, indent)
            if item is not None:
                yield " ".join(item)
            item = [mark[2]]
        elif item is not None and line.strip() and (mark or line[0] in " \t"):
            item.append(mark[2] if mark else line)
        elif item is not None and not line.strip():
            continue
        elif item is not None:
            yield " ".join(item)
            item = None
    if item is not None:
        yield " ".join(item)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, for an answer that is no list."""
    yield from re.split(r"\n\s*\n", text.strip())
