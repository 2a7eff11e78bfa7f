"""Nothing below a stopped runner runs on, however it forks; or its going on says so."""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.warden import descendants

PAGE = """
import mmap, os, sys, time
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
"""

FORKS = (
    PAGE
    + """
held = bytearray(os.urandom(1 << 20) * 300)  # a fork copies the tables of so many pages
while True:
    while not page[0]:
        pass
    page[1] = 1
    if os.fork() == 0:
        while True:
            page[8:16] = (int.from_bytes(page[8:16], "little") + 1).to_bytes(8, "little")
    page[0] = 0
    os.wait()
"""
)
"""Told to, forks a child that counts."""

HOPS = (
    PAGE
    + """
first = os.getpid()
page[1] = 1
while os.fork() == 0:
    page[8:16] = (int.from_bytes(page[8:16], "little") + 1).to_bytes(8, "little")
    time.sleep(0.001)
if os.getpid() == first:
    time.sleep(60)
"""
)
"""Each forks the next and is gone; the first one stays."""


@pytest.fixture
def started(tmp_path):
    """Starts a program under a warden; gives both ends of the page as well."""
    opened = []

    def start(text):
        file = tmp_path / f"page{len(opened)}"
        file.write_bytes(bytes(4096))
        argv = [sys.executable, "-S", "-c", text, str(file)]
        ward = Ward(argv, env={"PATH": os.environ["PATH"]}, cwd=tmp_path, remove=())
        opened.append(ward)
        with file.open("r+b") as open_file:
            return ward, mmap.mmap(open_file.fileno(), 4096)

    yield start
    for ward in opened:
        ward.end()


def counted(page) -> int:
    return int.from_bytes(page[8:16], "little")


def below_us(word: bytes, earlier: set[int]) -> int:
    """The one process below this one, but for earlier ones, with a word in its command line."""
    new = set(descendants()) - earlier
    (found,) = (p for p in new if word in Path(f"/proc/{p}/cmdline").read_bytes())
    return found


def await_byte(page, index, value) -> None:
    end = time.monotonic() + 30
    while page[index] != value:
        assert time.monotonic() < end, "the program does not start"


def test_a_fork_that_was_under_way_is_stopped_too(started):
    stopped = 0
    for _ in range(5):
        ward, page = started(FORKS)
        time.sleep(1.0)  # until it holds its memory
        page[0] = 1
        await_byte(page, 1, 1)
        if ward.stop():
            stopped += 1
            before = counted(page)
            time.sleep(0.05)
            assert counted(page) == before
        ward.slay()
    assert stopped, "not one stop said that it held: nothing was tried"


def test_a_chain_of_forks_that_outruns_the_stop_is_seen(started):
    """Who looks at a list of processes sees each hop too late; their dead stay."""
    ward, page = started(HOPS)
    await_byte(page, 1, 1)
    for _ in range(5):
        stopped = ward.stop()
        before = counted(page)
        time.sleep(0.05)
        ran = counted(page) - before
        kept_still = ward.go()
        assert not (stopped and kept_still and ran)


def test_who_was_slain_has_ended_at_once(started):
    """Its lane hands out no runner that is dead, as it did for the 20 ms until it heard of it."""
    ward, page = started(HOPS)
    await_byte(page, 1, 1)
    assert not ward.has_ended
    ward.slay()
    assert ward.has_ended


def test_an_answer_that_comes_too_late_is_nobody_elses(tmp_path):
    """A machine that is short of everything keeps the warden itself from answering."""
    argv = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    earlier = set(descendants())  # a warden that an earlier test has ended may still bury
    ward = Ward(argv, env={}, cwd=tmp_path, remove=(), patience_s=3.0)
    try:
        assert ward.cpu_s() >= 0.0  # it has started
        warden, runner = (below_us(word, earlier) for word in (b"evaluate/warden", b"time.sleep"))
        os.kill(warden, signal.SIGSTOP)
        assert not ward.stop()
        os.kill(warden, signal.SIGCONT)
        assert ward.owns(runner)
        assert not ward.owns(warden)
        assert ward.go()
    finally:
        ward.end()


def test_what_keeping_a_runner_takes_is_the_runners(tmp_path):
    """Else a node's own wardens would be neighbours that make a timing noisy."""
    argv = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    ward = Ward(argv, env={}, cwd=tmp_path, remove=())
    try:
        before = ward.cpu_s()
        for _ in range(3000):
            after = ward.cpu_s()
        assert after - before >= 0.03
    finally:
        ward.end()
