"""Who holds a lock: a small file beside it, for the message that a second comer gets.

The record proves nothing by its presence. It proves that a holder is gone only when it names
this very boot and PID namespace and the process has ended; anything less counts as alive.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.machine import boot_id, pid_namespace, runs, start_ticks
from pike_hpc.records import CodecError, from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that took a lock."""

    writer: str
    host: str
    pid: int
    start_ticks: int
    """Clock ticks after boot at which the process began, to tell recycled PIDs apart."""
    boot_id: str
    pid_namespace: str
    since: float
    """Unix time."""

    def describe(self) -> str:
        """For a person: who and where."""
        return f"{self.writer} (process {self.pid} on {self.host})"

    def has_ended(self) -> bool:
        """True only with proof: same boot, same PID namespace, and no such process."""
        if not self.boot_id or self.boot_id != boot_id() or self.pid_namespace != pid_namespace():
            return False
        return runs(self.pid, self.start_ticks) is False

    def lives_here(self) -> bool:
        """True only with proof that its pid is its own here: the same boot and PID namespace."""
        mine = (socket.gethostname(), boot_id(), pid_namespace())
        theirs = (self.host, self.boot_id, self.pid_namespace)
        return theirs == mine and runs(self.pid, self.start_ticks) is True


def this_process(writer: str, since: float) -> Holder:
    """The record of the calling process."""
    pid = os.getpid()
    return Holder(
        writer=writer,
        host=socket.gethostname(),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        since=since,
    )


def write_holder(path: Path, holder: Holder) -> None:
    """Put the record at path in one step. Only the lock's holder may call this."""
    new = path.with_name(path.name + ".new")
    new.write_text(to_json(holder), encoding="utf-8")
    new.replace(path)


def holder_file(lock: Path) -> Path:
    """Where the holder of that lock says who it is."""
    return lock.with_name(f"{lock.name}.holder")


def holder_of(lock: Path) -> Holder | None:
    """Who said last that it holds that lock; it may have ended since."""
    return read_holder(holder_file(lock))


def read_holder(path: Path) -> Holder | None:
    """The record at path, or None where there is none that can be read."""
    try:
        return from_json(Holder, path.read_bytes())
    except (OSError, CodecError):
        return None
