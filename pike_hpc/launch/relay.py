"""What a job of submitit's runs: its command, told of each SIGTERM.

Where Slurm follows processes by control groups, as most sites have it, a job that is cancelled or
preempted hears SIGTERM in its task alone. That is submitit's process, which passes it over, and
the command below it would be killed unwarned.

Pickled by value: submitit's process need not find pike_hpc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import cloudpickle
import submitit


def run_command(command: list[str]) -> str:
    """Run it through submitit's CommandFunction, in a main thread; what it printed.

    Raises submitit's FailedJobError where it fails.
    """
    signal.signal(signal.SIGTERM, _pass_on)
    printed: str = submitit.helpers.CommandFunction(command, verbose=False)()
    return printed


def _pass_on(number: int, frame: FrameType | None) -> None:
    for child in _children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _children() -> Iterator[int]:
    me = str(os.getpid()).encode()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, fields = stat.read_bytes().rpartition(b")")
            if fields.split()[1] == me:
                yield int(stat.parent.name)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
