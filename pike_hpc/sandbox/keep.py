"""The first program in a container: `python3 -I -S keep.py [--cpus=N,N,...] PROGRAM ARGUMENT...`.

Contract: starts the program in a session of its own with stdin from /dev/null and reaps what it
leaves behind. Exits with its status, 128+N for signal N, 127 where there is none of that name;
or as soon as stdin ends, which `sandbox.contain` holds open outside. With the first program the
kernel ends all others of the container. The program has those of the named CPUs that are there:
neither a daemon, nor a runtime that sets affinity anew as newer ones of crun and runc do, passes
on those of who asked. Standard library only, imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from types import FrameType

_SET_DUMPABLE = 4
_CPUS = "--cpus="
_LEFT_ALONE = 129
"""Exit status when whoever wanted the program is gone."""


def main() -> int:
    """Keep the program until it ends, or until nobody wants it any more."""
    # The program has our uid: it shall not read or write this memory.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _do_nothing)
    argv = sys.argv[1:]
    if argv[0].startswith(_CPUS):
        with contextlib.suppress(OSError):  # the container has none of them
            os.sched_setaffinity(0, map(int, argv.pop(0).removeprefix(_CPUS).split(",")))
    program = os.fork()
    if program == 0:
        _become(argv)
    while True:
        status = _reap(program)
        if status is not None:
            return status
        ready = select.select([0, wake_read], [], [])[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready and not os.read(0, 4096):
            return _LEFT_ALONE


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """The number is what wakes us."""


def _become(argv: list[str]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(2, f"sandbox: {argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _reap(program: int) -> int | None:
    """Collect the dead; the program's status where it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None


if __name__ == "__main__":
    sys.exit(main())
