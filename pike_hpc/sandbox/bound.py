"""Starts a program in a control group: `bound.py FOLDER MEMORY PROCESSES PROGRAM ARGUMENT...`.

Contract: run as `python -I -S`. FOLDER is a cgroup v2 folder whose children have the controllers
memory and pids; MEMORY is in bytes. Makes a group below it, moves there and becomes the program:
the limits then hold for all that descends from it together, files in memory included. Groups of
earlier starts that nothing is left in are removed. Standard library only, imports nothing of the
project. Exits with 125 where the group cannot be made and 127 where there is no such program.
"""

from __future__ import annotations

import errno
import os
import sys
import time

PREFIX = "pike-sandbox-"

_ATTEMPTS = 20
_SWEPT = (errno.ENOENT, errno.ENODEV)
"""What writing says when another start has swept our group away before we were in it."""


def main() -> int:
    """Become the program; a status only where that failed."""
    folder, memory, processes, *program = sys.argv[1:]
    try:
        sweep(folder)
        enter(folder, memory, processes)
    except OSError as error:
        os.write(2, f"sandbox: no control group: {error}\n".encode())
        return 125
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(2, f"sandbox: {program[0]}: {error.strerror}\n".encode())
    return 127


def sweep(folder: str) -> None:
    """Remove groups without processes; the kernel refuses to remove others."""
    for name in os.listdir(folder):  # noqa: PTH208 - pathlib slows every start
        if name.startswith(PREFIX):
            try:
                os.rmdir(f"{folder}/{name}")  # noqa: PTH106
            except OSError:
                continue


def enter(folder: str, memory: str, processes: str) -> None:
    """Move this process to a new group with those limits. Raises OSError."""
    for attempt in range(_ATTEMPTS):
        group = f"{folder}/{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        try:
            os.mkdir(group)  # noqa: PTH102
            _write(f"{group}/memory.max", memory)
            _write(f"{group}/pids.max", processes)
            if os.path.lexists(f"{group}/memory.swap.max"):  # absent where swap is not counted
                _write(f"{group}/memory.swap.max", "0")
            _write(f"{group}/cgroup.procs", "0")
        except OSError as error:
            if error.errno not in _SWEPT or attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _write(path: str, text: str) -> None:
    """Without O_CREAT: the kernel makes a group's files, and only where the controller is on."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main())
