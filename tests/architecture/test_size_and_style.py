"""Small files, small functions, telling names, documented seams, no print."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pike_hpc"

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "stuff"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "suites" not in path.parts)
TREES = {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in FILES}
"""The shipped tasks are data in another project's format; house rules stop at their folder."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[Path, Function]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield path, node


def test_there_is_something_to_look_at() -> None:
    assert len(TREES) > 20


def test_no_file_is_long() -> None:
    sizes = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in TREES}
    assert not {str(path): size for path, size in sizes.items() if size > MAX_FILE_LINES}


def test_no_function_is_long() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": size
        for path, node in functions()
        if (size := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long


def test_names_say_what_is_inside() -> None:
    names = [*PACKAGE.rglob("*.py"), *(p for p in PACKAGE.rglob("*") if p.is_dir())]
    assert not [str(path) for path in names if path.stem in BANNED_NAMES]


def test_only_the_command_line_prints() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        if path.parts[1] != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not found


def test_every_module_says_what_it_is() -> None:
    assert not [str(path) for path, tree in TREES.items() if not ast.get_docstring(tree)]


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def test_every_public_function_and_class_is_documented() -> None:
    bare = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in TREES.items()
        for node in public(tree.body)
        if not ast.get_docstring(node) and not is_overload(node)
    ]
    assert not bare


def is_overload(node: ast.ClassDef | Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "X" * 3])
def test_nothing_is_left_for_later_in_the_code(word: str) -> None:
    marks = [
        f"{path}:{number}"
        for path in TREES
        for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1)
        if f"# {word}" in line
    ]
    assert not marks


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
