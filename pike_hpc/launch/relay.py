"""What a job of submitit's runs: its command, told of each SIGTERM where it wants to be warned.

Where Slurm follows processes by control groups, as most sites have it, a job that is cancelled or
preempted hears SIGTERM in its task alone. That is submitit's process, which passes it over, and
the command below it would be killed unwarned.

Pickled by value: submitit's process need not find pike_hpc, of which nothing is called here. It
has to be of the Python version that submitted, as its other packages have to.
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


def run_command(command: list[str], *, warned: bool) -> str:
    """Run it through submitit's CommandFunction; what it printed.

    With `warned`, for main threads alone, each SIGTERM is passed on to it meanwhile. Raises
    submitit's FailedJobError where it fails.
    """
    function = submitit.helpers.CommandFunction(command, verbose=False)
    if not warned:
        return str(function())
    before = signal.signal(signal.SIGTERM, _pass_on)
    try:
        return str(function())
    finally:
        signal.signal(signal.SIGTERM, before)


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
