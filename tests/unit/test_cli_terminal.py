"""Whether lines of a terminal are drawn over."""

import io
import os

import pytest

from pike_hpc.cli.terminal import is_live


@pytest.mark.parametrize(
    ("environ", "live"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "xterm"}, True)]
)
def test_a_terminal_is_drawn_on_unless_plain_is_asked_for(environ, live):
    ours, theirs = os.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            assert is_live(terminal, environ) is live
    finally:
        os.close(ours)
    assert not is_live(io.StringIO(), environ)
