"""Keeps one runner, and everything below it, in a process of its own.

Of its own, and of the standard library only, because being the reaper of orphans
(PR_SET_CHILD_SUBREAPER) is a property of a whole process and must not befall a program that
merely uses a `Lane`. `ward` starts it by path. The first line on its socket says what to start;
each later line is `cpu`, `owns PID`, `stop`, `go`, `thaw`, `slay`, `mark` (what was printed so far
is forgotten) or `kill SECONDS-OF-GRACE`; after `slay` all below is dead and the warden still
answers. When the lane goes away the runner goes too.
"""

from __future__ import annotations

import ctypes
import json
import signal
import socket

from .keeper import Warden
from .processes import descendants, family, is_living, stat_of, threads_of
from .tail import TAIL_BYTES

__all__ = [
    "TAIL_BYTES",
    "Warden",
    "descendants",
    "family",
    "is_living",
    "main",
    "stat_of",
    "threads_of",
]

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def main(fd: str) -> None:
    """Keep the runner that the first line on socket `fd` orders."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the lane decides when the runner ends
    channel = socket.socket(fileno=int(fd))
    said = b""
    while b"\n" not in said:
        part = channel.recv(65536)
        if not part:
            return
        said += part
    order, _, more = said.partition(b"\n")
    Warden(channel, json.loads(order)).keep(more)
