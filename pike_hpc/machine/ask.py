"""Ask an outside program something, and give up after a while, whatever holds it.

Contract: `ask` returns within its time and a few seconds. What hangs in the kernel (a driver, a
dead file system) ends by no signal, and `subprocess.run` waits for it for ever: here its process
group is killed and left to a thread. Whoever asks says that it hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIES_WITHIN_S = 2.0
"""After SIGKILL; what lives on then hangs in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a program ended, or that it did not."""

    status: int | None = None
    """Its exit status, -N for signal N; None where it gave no answer."""
    stdout: str = ""
    stderr: str = ""
    why_not: str = ""
    """Why there is no status: it is not there, or did not end in its time."""
    missing: bool = False
    """Whether there is no such program."""
    hangs: bool = False
    """Whether it did not end in its time."""

    @property
    def complaint(self) -> str:
        """One line for a person: why there is no status, or the last that it said as it failed."""
        said = self.stderr.strip().splitlines()[-1:]
        return self.why_not or "".join(said) or f"it ended with status {self.status}"


def ask(
    argv: Sequence[str], timeout_s: float, *, environ: Mapping[str, str] | None = None
) -> Answer:
    """What a program says. Never raises for what the program does.

    Args:
        argv: it runs in a session of its own, with nothing on stdin.
        timeout_s: how long it may take; then it and its process group are killed.
        environ: all that it sees; None for what we see.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=None if environ is None else dict(environ),
        )
    except FileNotFoundError as error:
        return Answer(why_not=f"{error.filename} is not installed", missing=True)
    except OSError as error:
        return Answer(why_not=f"{argv[0]}: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        dead = end_group(process)
        held = "" if dead else ", and does not die of SIGKILL: it hangs in the kernel"
        return Answer(why_not=f"no answer within {timeout_s:g} s{held}", hangs=True)
    except BaseException:
        end_group(process)
        raise
    return Answer(status=process.returncode, stdout=_text(out), stderr=_text(err))


def end_group(process: subprocess.Popen[Any]) -> bool:
    """Kill a process that leads its group, and the group; False where it outlives that.

    Its pipes are closed unread: somebody who left the group may hold their other ends.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return buried(process)


def buried(process: subprocess.Popen[Any], patience_s: float = _DIES_WITHIN_S) -> bool:
    """Whether a killed process ends within that time; one that does not is left to a thread."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True, name=f"bury {process.pid}").start()
        return False
    return True


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")
