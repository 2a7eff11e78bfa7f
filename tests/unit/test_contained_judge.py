"""A judge that connects from elsewhere: heard, stopped, ended, and quoted by its last words."""

import os
import select
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pike_hpc.evaluate.contained import ADDRESS, Awaited, ContainedJudge
from pike_hpc.evaluate.warden import is_living, stat_of
from pike_hpc.evaluate.wire import Gone

CONNECT = f"""
import os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1] + "/{ADDRESS}")
words = link.makefile("r")
link.sendall(b'{{"pid": %d}}\\n' % os.getpid())
for line in words:
    print("heard", line, flush=True)
    link.sendall(line.encode())
    if "die" in line:
        os.kill(os.getpid(), 9)
"""
"""What an engine's client would start: it echoes."""

CLIENT = """
import subprocess, sys
status = subprocess.call(sys.argv[1:])
sys.exit(status if status >= 0 else 128 - status)
"""


@pytest.fixture
def lane():
    """A lane's folder, short enough for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def start(lane, code=CONNECT):
    folder = lane / "j1"
    folder.mkdir()
    argv = [sys.executable, "-c", CLIENT, sys.executable, "-c", code, str(folder)]
    return ContainedJudge(argv, folder, env={"PATH": "/usr/bin:/bin"}, cwd=lane)


def hear(judge, count=1, timeout_s=20.0):
    """That many messages."""
    heard, deadline = [], time.monotonic() + timeout_s
    while len(heard) < count:
        assert time.monotonic() < deadline, heard
        ready = select.select(judge.sources(), [], [], 1.0)[0]
        judge.pump()
        if judge.channel in ready:
            heard += judge.channel.receive()
    return heard


def test_what_was_said_before_it_connects_is_not_lost(lane):
    judge = start(lane)
    judge.channel.send(order="open")
    said = hear(judge, 2)
    assert "pid" in said[0]
    assert said[1] == {"order": "open"}
    judge.end()
    assert not is_living(stat_of(said[0]["pid"]))
    assert list(lane.iterdir()) == [], "its folder went with it"


def test_it_rests_while_it_is_frozen(lane):
    judge = start(lane)
    (first,) = hear(judge)
    own = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{first['pid']}/oom_score_adj").read_text() == own, "no runner: it may stay"
    judge.freeze()
    assert stat_of(first["pid"])[0] == "T"
    judge.channel.send(order="x")
    assert not select.select([judge.channel], [], [], 0.2)[0]
    judge.thaw()
    assert hear(judge) == [{"order": "x"}]
    judge.end()


def test_its_last_words_are_those_of_the_last_order(lane):
    judge = start(lane)
    hear(judge)
    judge.channel.send(order="first")
    hear(judge)
    judge.forget_words()
    judge.channel.send(order="die")
    with pytest.raises(Gone):
        hear(judge, 3)
    assert judge.last_words() == 'SIGKILL; heard {"order": "die"}'
    judge.end()


def test_words_of_earlier_orders_are_forgotten(lane):
    judge = start(lane, CONNECT.replace("print", "'die' in line or print"))
    hear(judge)
    judge.channel.send(order="first")
    hear(judge)
    judge.forget_words()
    judge.channel.send(order="die")
    with pytest.raises(Gone):
        hear(judge, 3)
    assert judge.last_words() == "SIGKILL; it said nothing"
    judge.end()


def test_one_that_never_connects_says_why(lane):
    judge = start(lane, "import sys; sys.exit('FATAL: no such image')")
    with pytest.raises(Gone):
        hear(judge)
    assert judge.last_words() == "FATAL: no such image"
    judge.end()
    judge.freeze()  # as another lane's timing may, at any moment
    judge.thaw()
    judge.forget_words()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a moment")
def test_nobody_elses_connection_is_taken(lane):
    lane.chmod(0o755)
    address = lane / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        address.chmod(0o666)
        listener.listen(1)
        channel = Awaited(listener)
        stranger = os.fork()
        if stranger == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(address))
                os._exit(link.recv(1) != b"")
        assert channel.receive() == []
        assert not channel.connected
        assert os.waitpid(stranger, 0)[1] == 0, "it was hung up on"
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(address))
            channel.receive()
            assert channel.connected
            channel.close()


def test_its_end_is_told_by_signal_or_status(lane):
    judge = start(lane, CONNECT.replace("os.getpid(), 9", f"os.getpid(), {int(signal.SIGSEGV)}"))
    hear(judge)
    judge.channel.send(order="die")
    with pytest.raises(Gone):
        hear(judge, 2)
    assert judge.last_words().startswith("SIGSEGV; heard")
    judge.end()
