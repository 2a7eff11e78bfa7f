"""Open the lane that judges here: engine chosen by trial, scratch folder, torch present."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pike_hpc import sandbox
from pike_hpc.evaluate import Lane
from pike_hpc.evaluate.device import Device, torch_version
from pike_hpc.machine import pid_namespace, runs, start_ticks
from pike_hpc.records import EvalRequest, EvalResult, Isolation, UsageError

_OWNER = re.compile(r"pike-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-")
"""PID namespace, process and its start time in the name of a scratch folder, in hexadecimal: a
socket's path below it may have 107 bytes."""


@contextmanager
def open_lane(
    device: Device, engine: str, tmp: Path | None = None, image: str | None = None
) -> Iterator[Lane]:
    """A lane on `device`, closed and its scratch removed at the end.

    Args:
        device: as `detect` found it.
        engine: a value of container.engine.
        tmp: node-local folder for sockets and scratch; the system's where None.
        image: container.image, for an engine that runs one.

    Raises:
        UsageError: no torch here, or the engine does not work here.
    """
    require_torch()
    with _scratch(tmp) as scratch:
        gpu = device.gpus[0] if device.torch_device == "cuda" else None
        chosen = _choose(engine, image)
        with Lane(device.torch_device, chosen, scratch=scratch, gpu=gpu, image=image) as lane:
            yield lane


def measure_isolation(engine: str, tmp: Path | None = None, image: str | None = None) -> Isolation:
    """What an engine stops here, by attacks. Raises UsageError, PikeError."""
    chosen = _choose(engine, image)
    with _scratch(tmp) as scratch, Lane("cpu", chosen, scratch=scratch, image=image) as lane:
        return lane.isolation


def require_torch() -> None:
    """Raises UsageError where this Python has no torch."""
    if torch_version() is None:
        raise UsageError(
            "torch is not installed here, and judging needs it",
            where=f"the Python at {sys.prefix}",
            fix="make setup, or pip install 'pike-hpc[local]', on a machine that judges",
        )


class LaneJudge:
    """A lane as the worker wants it: a judge of one kind of device."""

    def __init__(self, lane: Lane, device: Device) -> None:
        self._lane = lane
        self.device_kind = device.kind

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The verdict."""
        return self._lane.evaluate(request, on_phase)

    def close(self) -> None:
        """Kill what runs."""
        self._lane.close()


@contextmanager
def _scratch(tmp: Path | None) -> Iterator[Path]:
    if tmp is not None and not tmp.is_dir():
        raise UsageError(
            f"no folder {tmp} for scratch",
            where="paths.tmp of the site",
            valid="a node-local folder that exists, such as /tmp",
        )
    parent = tmp or Path(tempfile.gettempdir())
    sweep(parent)
    prefix = f"pike-{owner_name(os.getpid())}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # a candidate of another uid passes through to its own folder
        yield folder


def sweep(parent: Path) -> None:
    """Delete the scratch of our own processes that were killed before they could.

    Those of another PID namespace are left alone: nobody here can tell whether they live.
    """
    for folder in parent.glob("pike-*-*-*-*"):
        owner = _OWNER.match(folder.name)
        if owner is None or owner[1] != _namespace():
            continue
        with contextlib.suppress(OSError):
            mine = folder.stat().st_uid == os.geteuid() and not folder.is_symlink()
            if mine and runs(int(owner[2], 16), int(owner[3], 16)) is False:
                shutil.rmtree(folder, ignore_errors=True)


def owner_name(pid: int) -> str:
    """How a scratch folder names the process that it belongs to."""
    return f"{_namespace()}-{pid:x}-{start_ticks(pid) or 0:x}"


def _namespace() -> str:
    digits = "".join(filter(str.isdigit, pid_namespace()))
    return f"{int(digits or 0):x}"


def _choose(engine: str, image: str | None) -> sandbox.Engine:
    facts = sandbox.look()
    prefixes = sandbox.python_prefixes()
    spec = sandbox.SandboxSpec(argv=("true",), read_only=prefixes, env={}, image=image)
    return sandbox.choose(engine, facts, sandbox.python_trial(spec, Path(sys.executable)))
