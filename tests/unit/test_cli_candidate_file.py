"""How a candidate's file becomes its text."""

import os
from pathlib import Path

import pytest

from pike_hpc.cli.candidate_file import read_candidate
from pike_hpc.records import UsageError


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "c.py"
    path.write_bytes(b"\xef\xbb\xbfx = '\xc3\xa9'\r\n")
    assert read_candidate(path) == "x = 'é'\r\n"


@pytest.mark.timeout(60)
def test_what_never_ends_is_no_candidate(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "pipe.py", Path("/dev/zero")):
        with pytest.raises(UsageError, match="no file"):
            read_candidate(path)


def test_a_file_that_is_too_large_is_told_with_its_size(tmp_path):
    (tmp_path / "c.py").write_bytes(b"#" * 1_200_000)
    with pytest.raises(UsageError, match="1200000 bytes"):
        read_candidate(tmp_path / "c.py")


def test_other_encodings_are_refused(tmp_path):
    path = tmp_path / "c.py"
    path.write_bytes(b"x = '\xe9'\n")
    with pytest.raises(UsageError, match="UTF-8"):
        read_candidate(path)
