"""Which process, and does it still run? As the kernel tells it; see proc(5).

A pid alone proves nothing: it is reused, a reboot starts it anew, and in another container it
names another process. Boot, PID namespace, pid and start time together name one process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")

_START_TIME = 19
"""Index of starttime, field 22 of /proc/PID/stat, among the fields after the command."""


def boot_id() -> str:
    """A name of the kernel's current boot; empty where it can't be read."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """A name of this process's PID namespace; empty where it can't be read."""
    try:
        return str(_PID_NAMESPACE.readlink())
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Clock ticks after boot at which a process of this namespace began; None: it has ended.

    Raises PermissionError where the kernel hides other users' processes.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    # A zombie holds nothing any more: its descriptors are closed.
    return None if fields[0] in ("Z", "X") else int(fields[_START_TIME])


def start_token(pid: int | None = None) -> str:
    """BOOT-NAMESPACE-TICKS of a process of this PID namespace (default: this process)."""
    return f"{_place()}-{start_ticks(os.getpid() if pid is None else pid) or '?'}"


def is_that(pid: int, token: str) -> bool | None:
    """Whether the process of that start token lives; None: it is none of this boot and namespace.

    None as well where the kernel won't say.
    """
    place, _, started = token.rpartition("-")
    return runs(pid, int(started)) if place == _place() and started.isdigit() else None


def began_at(pid: int) -> float | None:
    """Unix seconds at which a process of this namespace began; None: it has ended, or is hidden."""
    try:
        ticks = start_ticks(pid)
    except OSError:
        return None
    if ticks is None:
        return None
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - up_s


def below(pid: int) -> frozenset[int]:
    """All that a process started, and what those did; not what outlived who started it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, look = set(), [pid]
    while look:
        new = [child for child in children.get(look.pop(), ()) if child not in found]
        found.update(new)
        look += new
    return frozenset(found)


def _place() -> str:
    return f"{boot_id() or '?'}-{pid_namespace() or '?'}"


def runs(pid: int, started: int) -> bool | None:
    """Whether the process that began at those ticks still runs; None: the kernel won't say."""
    try:
        return start_ticks(pid) == started
    except OSError:
        return None
