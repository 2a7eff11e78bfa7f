"""Whether the process behind a beat still runs, where that can be known for certain.

A start token names kernel boot, PID namespace and start time, so that a reused pid, a reboot
and a container with the same host name are never mistaken for the worker.
"""

from __future__ import annotations

import socket

from pike_hpc.machine import is_that
from pike_hpc.mailbox.message import WorkerBeat


def host_name() -> str:
    """What a beat of this machine carries as `host`."""
    return socket.gethostname()


def alive_here(beat: WorkerBeat) -> bool | None:
    """True or False for a process of this host, boot and PID namespace, else None."""
    return is_that(beat.pid, beat.start_token) if beat.host == host_name() else None
