"""What a build may send to the host, and what becomes of everything else."""

import contextlib
import json
import os
import socket
import struct
import threading
import time

import pytest

from pike_hpc.evaluate.build_link import MAX_LIBRARIES, BuildLink, Job

JOB = Job(task="task", candidate="candidate", arch="9.0")
KEY = bytes(range(32))


class Process:
    """The part of a Ward that a link looks at."""

    def __init__(self):
        self._read, self._write = os.pipe()
        self.has_ended = False

    def fileno(self):
        return self._read

    def pump(self):
        self.has_ended = True
        return True

    def end(self):
        os.write(self._write, b"!")


@pytest.fixture
def build(tmp_path):
    """`build(what, timeout_s)`: what a link makes of a client that does `what(socket)`."""

    def run(client, timeout_s=10.0, process=None, stop=None):
        stop_read, stop_write = os.pipe()
        address = tmp_path / "s"

        def talk():
            with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
                link.connect(str(address))
                client(link)

        with BuildLink(address) as link:
            thread = threading.Thread(target=talk)
            thread.start()
            if stop:
                os.write(stop_write, b"!")
            made = link.serve(JOB, process or Process(), stop_read, timeout_s)
        thread.join(10)
        return made

    return run


def library(name=b"ext", content=b"\x7fELF", size=None, key=KEY):
    size = len(content) if size is None else size
    return struct.pack(">c32s?HQ", b"L", key, True, len(name), size) + name + content


def end(outcome):
    return struct.pack(">cB", b"E", outcome)


def after_the_job(data):
    """Read the job, say `data`, hang up."""

    def client(link):
        with link.makefile("rb") as file:
            (size,) = struct.unpack(">I", file.read(4))
            job = json.loads(file.read(size))
        assert job == {"task": "task", "candidate": "candidate", "arch": "9.0"}
        link.sendall(data)

    return client


def test_libraries_and_how_it_ended(build):
    made = build(after_the_job(library() + library(b"other", b"x" * 100_000) + end(0)))
    assert [(each.name, len(each.content)) for each in made.libraries] == [
        ("ext", 4),
        ("other", 100_000),
    ]
    assert made.libraries[0].key == KEY.hex()
    assert made.outcome_known
    assert not made.failed


@pytest.mark.parametrize(("outcome", "failed"), [(0, False), (1, True), (2, False)])
def test_only_a_compilers_error_is_a_failure(build, outcome, failed):
    assert build(after_the_job(end(outcome))).failed is failed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"E",
        end(3),
        b"?" * 100,
        library(name=b"../../etc/passwd") + end(1),
        library(name=b"") + end(1),
        library(size=1 << 40) + end(1),
        library() * (MAX_LIBRARIES + 1) + end(1),
    ],
)
def test_nonsense_says_nothing(build, data):
    made = build(after_the_job(data))
    assert not made.outcome_known
    assert not made.failed
    assert len(made.libraries) <= MAX_LIBRARIES


def test_who_never_speaks_is_left_at_the_deadline(build):
    start = time.monotonic()
    made = build(lambda link: link.recv(1 << 20) and link.recv(1), timeout_s=0.3)
    assert not made.outcome_known
    assert time.monotonic() - start < 5


def test_who_never_connects_is_given_up_when_its_process_ends(tmp_path):
    process = Process()
    process.end()
    stop, _ = os.pipe()
    start = time.monotonic()
    with BuildLink(tmp_path / "s") as link:
        assert not link.serve(JOB, process, stop, 60.0).outcome_known
    assert time.monotonic() - start < 10


def test_a_closing_pool_ends_it(build):
    made = build(lambda link: link.recv(1 << 20) and link.recv(1), timeout_s=60.0, stop=True)
    assert not made.outcome_known
