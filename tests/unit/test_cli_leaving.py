"""How a command ends where its output's reader has left, and where a file system fails under it."""

import errno
import io
import os
import subprocess
import sys

import pytest

from pike_hpc.cli import main


def test_a_reader_that_leaves_ends_a_command_without_a_word():
    argv = [sys.executable, "-m", "pike_hpc", "tasks", "list"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ended = subprocess.run(
            argv, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(writes)
    assert (ended.returncode, ended.stderr) == (1, "")


class Failing(io.StringIO):
    """A file on a file system that fails, or the pipe of somebody else."""

    code = 0

    def flush(self):
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ESHUTDOWN, "once it answers again"),
        (errno.EIO, "once it answers again"),
        (errno.ESTALE, "once it answers again"),
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
    ],
)
def test_a_file_system_that_fails_is_told_and_to_be_tried_again(monkeypatch, capsys, code, fix):
    out = Failing()
    out.code = code
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["tasks", "list"]) == 75
    said = capsys.readouterr().err
    assert os.strerror(code) in said
    assert fix in said


def test_a_broken_pipe_that_is_not_stdout_s_is_no_reader_that_left(monkeypatch):
    out = Failing()
    out.code = errno.EPIPE
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(BrokenPipeError):
        main(["tasks", "list"])
