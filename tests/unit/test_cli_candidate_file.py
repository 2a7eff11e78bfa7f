"""How a candidate's file becomes its text."""

import pytest

from pike_hpc.cli.candidate_file import read_candidate
from pike_hpc.records import UsageError


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "c.py"
    path.write_bytes(b"\xef\xbb\xbfx = '\xc3\xa9'\r\n")
    assert read_candidate(path) == "x = 'é'\r\n"


def test_other_encodings_are_refused(tmp_path):
    path = tmp_path / "c.py"
    path.write_bytes(b"x = '\xe9'\n")
    with pytest.raises(UsageError, match="UTF-8"):
        read_candidate(path)
