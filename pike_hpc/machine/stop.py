"""A wish to stop, from a signal or from another thread, that never interrupts a file operation.

Slurm and people send SIGTERM and SIGINT, submitit's batch jobs SIGUSR2 ahead of the walltime.
A second Ctrl-C means now.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Stop:
    """Remembers the first wish, and wakes whoever waits."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.hurried = False
        # Unlike an Event, its put may run inside a signal handler that interrupts its get.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def request(self, reason: str, *, now: bool = False) -> None:
        """Ask to stop: by itself, or (`now`) killing what is in flight."""
        self.reason = self.reason or reason
        self.hurried = self.hurried or now
        self.ring()

    def ring(self) -> None:
        """Wake the waiter: something has changed."""
        self._bell.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a ring, at most `timeout_s`."""
        try:
            self._bell.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """A Stop that SIGTERM, SIGINT and SIGUSR2 request. For the main thread only."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and stop.reason == "SIGINT"
        stop.request(signal.Signals(number).name, now=again)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
