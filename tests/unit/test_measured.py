"""What makes a measured figure stale is code, not what is said of it."""

import ast

import pytest

from pike_hpc.evaluate.measured import PACKAGE, code_of

PLAIN = """import math

X = 3


class Thing:
    y: int


def f(a):
    b = "é # no comment"
    return '''
# text

''' + f'''{a}

''' + b
"""
SAID = '''"""A module."""  # of sorts

import math  # why

X = 3
"""What it is,
and where it is from."""


# A thing.
class Thing:
    """A thing."""

    y: int
    """ÿ, # in feet."""


def f(a):
    """Say.

    Args: # none
    """
    # a comment
    b = "é # no comment"  # é
    return \'\'\'
# text

\'\'\' + f\'\'\'{a}

\'\'\' + b
'''


def test_what_is_said_of_code_is_no_part_of_it():
    assert code_of(SAID) == code_of(PLAIN)
    assert code_of(SAID.replace("\n\n\ndef", "\ndef")) == code_of(PLAIN)
    for line in PLAIN.splitlines():
        assert line in code_of(SAID).splitlines() or not line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 3", "X = 4"),
        ("# text", "# other text"),
        ("é # no comment", "é # a comment"),
        ("def f(a):", "def f(a, b=0):"),
        ("import math", "import os"),
        ("# text\n\n", "# text\n"),
        ("{a}\n\n", "{a}\n"),
    ],
)
def test_a_change_of_code_is_seen(old, new):
    assert old in PLAIN
    assert code_of(PLAIN.replace(old, new)) != code_of(PLAIN)
    assert code_of(SAID.replace(old, new)) != code_of(SAID)


def test_two_texts_on_a_line_and_an_empty_module():
    assert code_of("") == ""
    assert code_of('"a"; x = 1; "b"\n').strip(" ;\n") == "x = 1"


def test_every_module_of_ours_still_has_its_code():
    """As the interpreter has it, without its docstrings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        names = [
            (type(node), node.name)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        kept = code_of(source)
        assert all(name in kept for _, name in names), path
        assert bool(kept) == any(not lone(node) for node in ast.parse(source).body), path


def lone(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
