"""Whether the process behind a beat still runs, where that can be known for certain.

A start token names kernel boot, PID namespace and start time, so that a reused pid, a reboot
and a container with the same host name are never mistaken for the worker.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pike_hpc.mailbox.message import WorkerBeat

_START_TIME_FIELD = 22
"""Of /proc/PID/stat, see proc_pid_stat(5); in clock ticks since boot."""
_STATE_FIELD = 3


def host_name() -> str:
    """What a beat of this machine carries as `host`."""
    return socket.gethostname()


def start_token(pid: int | None = None) -> str:
    """BOOT-NAMESPACE-TICKS of a process of this PID namespace (default: this process)."""
    started = _stat_field(os.getpid() if pid is None else pid, _START_TIME_FIELD)
    return f"{_place()}-{started or '?'}"


def alive_here(beat: WorkerBeat) -> bool | None:
    """True or False for a process of this host, boot and PID namespace, else None."""
    place, _, started = beat.start_token.rpartition("-")
    if beat.host != host_name() or place != _place() or not started.isdigit():
        return None
    if _stat_field(beat.pid, _START_TIME_FIELD) != started:
        return False
    return _stat_field(beat.pid, _STATE_FIELD) not in ("Z", "X")


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - follows a magic link
        return f"{boot.read_text().strip()[:13]}-{namespace}"
    except OSError:
        return "?"


def _stat_field(pid: int, number: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name, field 2, may hold spaces and parentheses.
    return stat.rpartition(")")[2].split()[number - 3]
