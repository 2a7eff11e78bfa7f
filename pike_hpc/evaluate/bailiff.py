"""The judge's process beside us, as the lane starts, hears and ends it. No torch on this side.

One in an image is `contained`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.screen import printable
from pike_hpc.evaluate.wire import Channel, Gone
from pike_hpc.machine import buried

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_START_PATIENCE_S = 10.0
_STOP_PATIENCE_S = 2.0
_DIES_WITHIN_S = 20.0
"""After SIGKILL. The driver first frees what the judge held of the device and pinned on the host,
which took some of six on an H200 more than 2 s (`python tests/bench/throughput.py --seconds 240`
said so in the end, 2026-11-26)."""
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


class JudgeProcess:
    """A running judge and the channel to it."""

    def __init__(self, python: str, folder: Path, env: dict[str, str]) -> None:
        """Start it.

        Args:
            python: an interpreter with torch.
            folder: for the sockets of its runners.
            env: its whole environment.
        """
        ours, theirs = socket.socketpair()
        start = (
            # A worker that is killed while this is frozen must leave nothing that is stopped.
            f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, "
            f"{int(signal.SIGCONT)}); os.write({theirs.fileno()}, b'{{}}\\n'); "
            "sys.pycache_prefix = os.environ.get('PYTHONPYCACHEPREFIX'); "
            f"sys.path.insert(0, {str(_PACKAGE_PARENT)!r}); "
            "from pike_hpc.evaluate.judge_process import main; "
            f"main({theirs.fileno()}, {str(folder)!r})"
        )
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._said = 0
        with theirs:
            self._process = subprocess.Popen(
                [python, "-I", "-B", "-c", start],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=env,
                start_new_session=True,
            )
        self.channel = Channel(ours)
        # Until it has said its first word it must not be frozen: nothing would wake it.
        if select.select([ours], [], [], _START_PATIENCE_S)[0]:
            with contextlib.suppress(Gone):
                self.channel.receive()

    def sources(self) -> list[Any]:
        """What to wait for."""
        return [self.channel]

    def pump(self) -> None:
        """Its end shows on the channel, and nowhere else."""

    def forget_words(self) -> None:
        """What it wrote so far belongs to earlier orders."""
        self._said = os.fstat(self._log.fileno()).st_size

    def last_words(self) -> str:
        """How it ended and the last line it wrote since `forget_words`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._said, size - 4096)
        raw = os.pread(self._log.fileno(), size - start, start)
        return how_it_ended(self._process.returncode, raw.decode("utf-8", "replace"))

    def freeze(self) -> None:
        """Stop it. It is trusted; only its kernels must not run."""
        self._process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_PATIENCE_S
        stopped = os.WSTOPPED | os.WNOHANG
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self._process.pid, stopped) is not None:
                    return
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Hang up, then kill."""
        self.channel.close()
        self._process.kill()
        if not buried(self._process, _DIES_WITHIN_S):
            _log.warning(
                "judge %d was killed and lives on after %.0f s: its driver hangs",
                self._process.pid,
                _DIES_WITHIN_S,
            )
        self._log.close()


def how_it_ended(status: int | None, said: str) -> str:
    """One line: the signal or status, -N or 128+N for signal N, and the last line of the log."""
    lines = clean(said).strip().splitlines()
    last = printable(lines[-1], 300) if lines else "it said nothing"
    if status in (None, 1):
        return last
    number = -status if status < 0 else status - 128
    named = number in set(signal.Signals)
    return f"{signal.Signals(number).name if named else f'exit status {status}'}; {last}"
