"""Room for a run's files: waiting until its folder takes bytes again, and saying so.

Only writing tells of a full disk or a used-up quota: what a file system says of its free space
knows nothing of quotas. Who waits leaves an empty file as a mark, which takes no room.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pike_hpc.cli.file_age import FileAges
from pike_hpc.machine import FULL

_PROBE_BYTES = 64 * 1024
"""The next few events of a journal, and more than a file system's last free block."""

_LOOK_S = 5.0
"""Between two looks whether there is room again."""

_FRESH_S = 60.0
"""An older mark was left by an agent that is gone."""

_SAID = "no space left for the run: workers and agents go on once there is some"


def tells_of_no_room(message: str) -> bool:
    """Whether an explained error came of a full disk or a used-up quota."""
    return any(os.strerror(code) in message for code in FULL)


def await_room(run_dir: Path, waiting: Callable[[], bool], sleep: Callable[[float], None]) -> bool:
    """Pause, and return True once the folder takes bytes; False once `waiting` says no."""
    mark = _mark(run_dir)
    while waiting():
        with contextlib.suppress(OSError):
            mark.touch()
        sleep(_LOOK_S)
        if _has_room(run_dir):
            with contextlib.suppress(OSError):
                mark.unlink()
            return True
    return False


def no_room(run_dir: Path, ages: FileAges) -> str:
    """For `status`: that the run's folder is full, as its agents or the file system say; or ""."""
    age_s = ages.age_s(_mark(run_dir))
    if age_s is not None and age_s < _FRESH_S:
        return _SAID
    with contextlib.suppress(OSError):
        if shutil.disk_usage(run_dir).free < _PROBE_BYTES:
            return _SAID
    return ""


def _has_room(run_dir: Path) -> bool:
    probe = run_dir / "slurm" / f"room-{os.getpid()}"
    try:
        with probe.open("wb", buffering=0) as file:
            taken = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return taken == _PROBE_BYTES


def _mark(run_dir: Path) -> Path:
    return run_dir / "slurm" / "no-room"
