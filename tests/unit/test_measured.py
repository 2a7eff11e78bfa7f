"""What makes a measured figure stale is code, not what is said of it."""

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
\'\'\' + b
'''


def test_what_is_said_of_code_is_no_part_of_it():
    assert code_of(PLAIN) == PLAIN
    assert code_of(SAID) == PLAIN.replace("class Thing:\n", "class Thing:\n\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 3", "X = 4"),
        ("# text", "# other text"),
        ("é # no comment", "é # a comment"),
        ("def f(a):", "def f(a, b=0):"),
        ("import math", "import os"),
    ],
)
def test_a_change_of_code_is_seen(old, new):
    assert old in PLAIN
    assert code_of(PLAIN.replace(old, new)) != PLAIN
    assert code_of(SAID.replace(old, new)) != code_of(SAID)


def test_two_texts_on_a_line_and_an_empty_module():
    assert code_of("") == ""
    assert code_of('"a"; x = 1; "b"\n').strip(" ;\n") == "x = 1"


def test_every_module_of_ours_still_has_its_code():
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        lines = set(source.splitlines())
        kept = code_of(source).splitlines()
        assert all(line in lines or any(x.startswith(line) for x in lines) for line in kept), path
