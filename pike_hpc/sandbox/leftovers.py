"""Containers that were killed together with their monitor: podman lists them as running for ever.

Contract: `forget_ended` removes those of ours on this node whose first process is gone; a
container that lives, or is just being made, is nobody's leftover. It does not raise: where the
client does not work, whoever tries it next says why.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from pike_hpc.sandbox.containers import KEEP, LABEL, client
from pike_hpc.sandbox.host import HostFacts
from pike_hpc.sandbox.spec import Engine

_TIMEOUT_S = 60.0
_AT_ONCE = 100
_ROUNDS = 5


def forget_ended(engine: Engine, facts: HostFacts) -> int:
    """Remove them; how many there were. Docker's daemon does that by itself."""
    if engine is Engine.DOCKER or not engine.is_container:
        return 0
    named = ("--filter", f"label={LABEL}", "--format", "{{.ID}} {{.Pid}}")
    forgotten: set[str] = set()
    # The first time podman finds out that they do not run; later it removes them, not always all.
    for _ in range(_ROUNDS):
        found = ended(_said(client(engine, facts, "ps", "--all", *named)), _keeps)
        for first in range(0, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            _said(client(engine, facts, "rm", "--force", "--time", "0", *some))
        forgotten.update(found)
        if not found:
            break
    return len(forgotten)


def ended(listed: str, keeps: Callable[[int], bool]) -> list[str]:
    """Ids in lines of id and process, without those whose process `keeps` or was never started."""
    pairs = [words for line in listed.splitlines() if len(words := line.split()) == 2]
    return [id_ for id_, pid in pairs if pid.isdecimal() and pid != "0" and not keeps(int(pid))]


def _keeps(pid: int) -> bool:
    """Whether that process is the first one of a container of ours; a dead one has no words."""
    try:
        return str(KEEP).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _said(argv: list[str]) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout
    return ""
