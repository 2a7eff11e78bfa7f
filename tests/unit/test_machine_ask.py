"""Outside programs that answer, fail, hang, and do not even die."""

import os
import sys
import threading
import time

import pytest

from pike_hpc.machine import ask, start_ticks

SOON_S = 20.0
"""Far above what giving up takes, far below how long the held ones live."""


@pytest.fixture
def fence(tmp_path):
    """A FIFO whose readers wait until the test is over."""
    path = tmp_path / "fence"
    os.mkfifo(path)
    ours = os.open(path, os.O_RDWR)
    yield path
    os.close(ours)


def test_an_answer_has_status_and_both_outputs():
    said = ask(["sh", "-c", "echo out; echo first >&2; echo last >&2; exit 3"], 30)
    assert (said.status, said.stdout, said.complaint) == (3, "out\n", "last")
    assert not said.hangs
    assert ask(["sh", "-c", "exit 4"], 30).complaint == "it ended with status 4"
    assert ask(["sh", "-c", "echo $A"], 30, environ={"A": "b"}).stdout == "b\n"


def test_what_is_not_text_is_no_trouble():
    assert ask(["printf", r"a\377b"], 30).stdout == "a\ufffdb"


def test_a_program_that_is_not_there_is_told_from_one_that_cannot_run(tmp_path):
    said = ask(["no-such-program"], 30)
    assert (said.status, said.missing, said.hangs) == (None, True, False)
    assert said.complaint == "no-such-program is not installed"
    said = ask([str(tmp_path)], 30)
    assert (said.status, said.missing) == (None, False)
    assert "Permission denied" in said.complaint


def test_one_that_hangs_is_killed_with_its_group(fence):
    began = time.monotonic()
    said = ask(["sh", "-c", f"cat {fence} & echo $! > {fence}.pid; trap '' TERM; wait"], 0.5)
    assert time.monotonic() - began < SOON_S
    assert said.hangs
    assert said.complaint == "no answer within 0.5 s"
    beside = int((fence.parent / "fence.pid").read_text())
    assert gone(beside)


def test_who_left_the_group_and_holds_the_output_is_not_waited_for(fence):
    began = time.monotonic()
    # Answers at once, but the pipe stays open.
    said = ask(["sh", "-c", f"setsid sh -c 'read _ < {fence}' & echo ready"], 0.5)
    assert said.hangs
    assert time.monotonic() - began < SOON_S


HELD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    attached = libc.ptrace(16, os.getppid(), 0, 0) == 0
    os.write(write, b"y" if attached else b"n")
    open(sys.argv[1]).read(1)
    os._exit(0)
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # whoever wants to may trace
if os.read(read, 1) == b"y":
    open(sys.argv[1]).read(1)
"""
"""A program whose tracer has to let go of it before its parent sees it dead: SIGKILL alone does
not end it for us, as with one that waits in a driver."""


def test_one_that_does_not_die_is_left_alone(fence):
    began = time.monotonic()
    said = ask([sys.executable, "-c", HELD, str(fence)], 3.0)
    took_s = time.monotonic() - began
    if said.status == 0:
        pytest.skip("nobody may be traced here")
    assert said.hangs
    assert "hangs in the kernel" in said.complaint
    assert took_s < SOON_S
    (bury,) = [t for t in threading.enumerate() if t.name.startswith("bury")]
    fence.write_text("go on")
    bury.join(SOON_S)
    assert not bury.is_alive(), "it is reaped as soon as it can be"


def gone(pid):
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        if start_ticks(pid) is None:
            return True
        time.sleep(0.05)
    return False
