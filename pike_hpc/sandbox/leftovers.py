"""Containers that were killed together with their monitor: podman lists them as running for ever.

Contract: `forget_ended` removes those of ours on this node whose first process is gone, and those
made minutes ago that never started or have exited: who should have removed them was killed, maybe
amid that. A container that lives, or is just being made, is nobody's leftover. It does not raise:
where the client does not work, whoever tries it next says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pike_hpc.machine import ask
from pike_hpc.sandbox.containers import KEEP, LABEL, client
from pike_hpc.sandbox.host import HostFacts
from pike_hpc.sandbox.spec import Engine

_TIMEOUT_S = 60.0
_AT_ONCE = 100
_ROUNDS = 5
_IDLE = ("created", "exited", "removing")
"""Of what no process is left, whoever was killed while it made or removed it."""
_MADE_WITHIN = "5m"
"""What is not started by then never will be; and who waits for one that exited sooner may yet ask
how."""


def forget_ended(engine: Engine, facts: HostFacts, made_within: str = _MADE_WITHIN) -> int:
    """Remove them; how many there were. Docker's daemon does that by itself."""
    if engine is Engine.DOCKER or not engine.is_container:
        return 0
    named = ("--filter", f"label={LABEL}", "--format", "{{.ID}} {{.Pid}}")
    idle = [word for state in _IDLE for word in ("--filter", f"status={state}")]
    unwanted = (*idle, "--filter", f"until={made_within}")
    forgotten: set[str] = set()
    # The first time podman finds out that they do not run; later it removes them, not always all.
    for _ in range(_ROUNDS):
        found = ended(_said(client(engine, facts, "ps", "--all", *named)), _keeps)
        found += ids(_said(client(engine, facts, "ps", "--all", *unwanted, *named)))
        for first in range(0, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            _said(client(engine, facts, "rm", "--force", "--time", "0", *some))
        forgotten.update(found)
        if not found:
            break
    return len(forgotten)


def ended(listed: str, keeps: Callable[[int], bool]) -> list[str]:
    """Ids in lines of id and process, without those whose process `keeps` or was never started."""
    return [id_ for id_, pid in _pairs(listed) if pid and not keeps(pid)]


def ids(listed: str) -> list[str]:
    """All ids in such lines."""
    return [id_ for id_, _ in _pairs(listed)]


def _pairs(listed: str) -> list[tuple[str, int]]:
    """Podman may say other things among them."""
    words = (line.split() for line in listed.splitlines())
    return [(w[0], int(w[1])) for w in words if len(w) == 2 and w[1].isdecimal()]


def _keeps(pid: int) -> bool:
    """Whether that process is the first one of a container of ours; a dead one has no words."""
    try:
        return str(KEEP).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _said(argv: list[str]) -> str:
    return ask(argv, _TIMEOUT_S).stdout
