"""Whether the process behind a beat still runs, where that can be known for certain.

A start token names kernel boot, PID namespace and start time, so that a reused pid, a reboot
and a container with the same host name are never mistaken for the worker.
"""

from __future__ import annotations

import os
import socket

from pike_hpc.machine import boot_id, pid_namespace, runs, start_ticks
from pike_hpc.mailbox.message import WorkerBeat


def host_name() -> str:
    """What a beat of this machine carries as `host`."""
    return socket.gethostname()


def start_token(pid: int | None = None) -> str:
    """BOOT-NAMESPACE-TICKS of a process of this PID namespace (default: this process)."""
    return f"{_place()}-{start_ticks(os.getpid() if pid is None else pid) or '?'}"


def alive_here(beat: WorkerBeat) -> bool | None:
    """True or False for a process of this host, boot and PID namespace, else None."""
    place, _, started = beat.start_token.rpartition("-")
    if beat.host != host_name() or place != _place() or not started.isdigit():
        return None
    return runs(beat.pid, int(started))


def _place() -> str:
    return f"{boot_id() or '?'}-{pid_namespace() or '?'}"
