"""What can be said of a candidate's text alone."""

import pytest

from pike_hpc.evaluate.logs import TAIL_CHARS, clean
from pike_hpc.evaluate.screen import printable, screen
from pike_hpc.records import EvalStatus


@pytest.mark.parametrize(
    "source",
    [
        "class ModelNew: pass",
        "class Model: pass",
        "ModelNew = make()",
        "from somewhere import Net as ModelNew",
        "from somewhere import *",
        "if True:\n    class ModelNew: pass",
        "def ModelNew(width): return net",
        r"pattern = '\d'; class_ = 1" + "\nclass Model: pass",
    ],
)
def test_a_program_with_an_entry_may_start(source):
    assert screen(source) is None


@pytest.mark.parametrize("source", ["", "x = ModelNew", "class Net: pass", "'class ModelNew'"])
def test_a_program_without_an_entry_is_rejected(source):
    refusal = screen(source)
    assert refusal is not None
    assert refusal.status is EvalStatus.REJECTED
    assert "ModelNew" in refusal.message


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("x = 1\nclass ModelNew(:\n", "line 2"),
        ("class ModelNew: pass\0", "not Python"),
        ("class ModelNew: pass\nx = " + "(" * 5000, "not Python"),
        ("class ModelNew: pass\nx = " + "-" * 200_000 + "1", "not Python"),
        ("class ModelNew: pass # \ud800", "UTF-8"),
        ("\x1b[31m = 3", "not Python"),
    ],
)
def test_what_is_no_python_is_a_build_error(source, part):
    refusal = screen(source)
    assert refusal is not None
    assert refusal.status is EvalStatus.BUILD_ERROR
    assert part in refusal.message
    assert refusal.message.isprintable()


def test_logs_lose_escapes_and_their_beginning():
    log = "\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 a\r\nb\tc \x1b[2J" + "x" * 10
    assert clean(log) == "red bell\ufffd a\nb\tc " + "x" * 10
    assert clean("a" * 100_000 + "end").endswith("end")
    assert len(clean("a" * 100_000)) == TAIL_CHARS


def test_one_line_for_a_person():
    assert printable("a\n  b\x1b[1m") == "a b [1m"
    assert len(printable("x" * 1000, 50)) == 50
