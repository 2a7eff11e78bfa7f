# ruff: noqa: PTH108, PTH116, PTH123, PTH208 - pathlib slows every start
"""Stops a program amid its work, as a judge does: `python -I -S hold.py BEATS HELD PROGRAM …`.

Contract: when the file BEATS grows, SIGSTOP goes to all processes below this one, orphans too;
what BEATS does meanwhile is written to HELD: "rested" or "ran". Then they go on, BEATS is
removed, and the program is waited for. A program that never beats leaves no HELD. Exits with its
status. Standard library only, imports nothing of the project.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

WATCH_S = 0.15
"""Fifteen beats of a program that was not stopped."""
SETTLE_S = 0.05
"""For a beat that had begun."""

_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Start, stop, look, let go, wait."""
    beats, held, *program = sys.argv[1:]
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(program)
    while child.poll() is None and _size(beats) == 0:
        time.sleep(0.01)
    if _size(beats) > 0:
        stopped = _stop_all()
        time.sleep(SETTLE_S)
        before = _size(beats)
        time.sleep(WATCH_S)
        rested = before == _size(beats)
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)
        with open(held, "w", encoding="ascii") as file:
            file.write("rested" if rested else "ran")
        os.unlink(beats)
    return child.wait()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _stop_all() -> list[int]:
    """Until a look finds nobody new: who is stopped starts nobody."""
    stopped: list[int] = []
    while new := [pid for pid in _below() if pid not in stopped]:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped += new
    return stopped


def _below() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(name))
    found = list(parents.get(os.getpid(), ()))
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # gone, or not ours: the beats tell


if __name__ == "__main__":
    sys.exit(main())
