"""A worker's signs of life before its first request: what it is at, so that nobody thinks it dead.

They prove nothing to other hosts, for their counter stands still: a worker may hang in any of this.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pike_hpc.mailbox import STARTING, FileMailbox, WorkerBeat, host_name, start_token
from pike_hpc.records import TryAgainLater
from pike_hpc.worker import WorkerOptions


class Arrival:
    """Beats of a worker that is not at work yet; taken back where it never will be."""

    def __init__(self, mailbox: FileMailbox, worker: WorkerOptions, device_kind: str) -> None:
        """`mailbox` is to be the worker's own: another's beats are another worker's."""
        self._mailbox = mailbox
        self._beat = WorkerBeat(
            worker_id=worker.worker_id,
            host=host_name(),
            pid=os.getpid(),
            start_token=start_token(),
            counter=0,
            job=worker.job,
            job_restarts=worker.job_restarts,
            state=STARTING,
            device_kind=device_kind,
            judged=0,
            started_at=time.time(),
        )

    def at(self, phase: str) -> None:
        """Say what it begins with, to follow "it hangs in the"."""
        with suppress(TryAgainLater):
            self._mailbox.beat(dataclasses.replace(self._beat, phase=phase))

    @contextmanager
    def or_leave(self) -> Iterator[None]:
        """What fails meanwhile ends the worker, in order."""
        try:
            yield
        except BaseException:
            with suppress(TryAgainLater):
                self._mailbox.retire(self._beat.worker_id)
            raise
