"""Who is below a process, and whether it rests: what /proc tells of a keeper's own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Collection
from pathlib import Path

_PROC_BYTES = 1 << 14
_WALKS = 4
"""How often one looks at lists of children that change while one looks."""
_THREADS = 17
"""num_threads among the fields that `stat_of` gives (proc_pid_stat(5) counts from the pid)."""
AT_REST = b"TtDZXI"
"""States of proc_pid_stat(5) in which a thread that was told to stop runs no more."""
_DEAD = b"ZX"
_LAST_SWITCHES = 16
"""Of a thread that slept in the kernel when it was stopped, until the stop reached it."""

Threads = dict[str, tuple[bytes, int]]
"""By thread id: its state, and how often it was switched on or off a core."""


def stat_of(pid: int, proc: str = "/proc") -> list[str]:
    """Fields of /proc/PID/stat after the command's name (state first); empty when it is gone."""
    text = _read(f"{proc}/{pid}/stat").decode("ascii", "replace")
    return text.rpartition(")")[2].split()


def threads_of(pid: int, proc: str = "/proc") -> Threads:
    """State of each thread and how often it was switched; empty when the process is gone.

    A thread that stops has that state for a moment before its last switch is counted, and for
    milliseconds where others hold what it needs in between. Asked for the system call of one that
    is stopped, the kernel first waits until it has left its core (lib/syscall.c); of one amid exec
    that answer may take as long as it likes. Where it may not be asked, as of what has given
    privileges up, two looks that agree are all there is. A process that hides, as it can where
    /proc is mounted with hidepid, has a thread that never rests.
    """
    found: Threads = {}
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"{proc}/{pid}/task"):
            seen = _state_of(thread.path)
            if seen[0] == b"T":
                _read(f"{thread.path}/syscall")
                seen = _state_of(thread.path)
            found[thread.name] = seen
    return found if found or not kill(pid, 0) else {"": (b"?", 0)}


def _state_of(thread: str) -> tuple[bytes, int]:
    """Of a thread's folder: its state, and how often it was switched; `?` where it is gone."""
    text = _read(f"{thread}/status")
    state = re.search(rb"^State:\s+(\S)", text, re.MULTILINE)
    switches = re.findall(rb"ctxt_switches:\s+(\d+)", text)
    return state[1] if state and switches else b"?", sum(map(int, switches))


def slept_on(before: Threads, now: Threads) -> bool:
    """Whether the same threads rest as before, and ran no more than the end of a system call.

    The dead do not run: their last switch may be counted after they are called dead.
    """
    return before.keys() == now.keys() and all(
        state in AT_REST
        and (
            before[thread][0] in _DEAD
            or switches <= before[thread][1] + (_LAST_SWITCHES if before[thread][0] == b"D" else 0)
        )
        for thread, (state, switches) in now.items()
    )


def _read(path: str) -> bytes:
    """A small file of /proc, in a third of pathlib's time: each stop reads one a process."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _PROC_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _read_all(path: str) -> bytes:
    """A file of /proc of any length. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _PROC_BYTES), b""))
    finally:
        os.close(fd)


def is_living(fields: list[str]) -> bool:
    """Whether any thread runs. The first one may have ended before the others: a zombie then."""
    return bool(fields) and (fields[0] not in ("Z", "X") or int(fields[_THREADS]) > 1)


def family(me: int | None = None, proc: str = "/proc") -> dict[int, bool]:
    """All processes below `me` (this one), parents first, and whether each lives or lies unburied.

    By the kernel's lists of children: a node has thousands of processes, and to read them all took
    milliseconds of each stop. Such a list lacks one at most where a sibling that was listed, or
    the thread that started it, ends meanwhile (fs/proc/array.c, get_children_pid): then the next
    walk lacks the one that ended, so what two in a row agree on is whole. Where they never do, or
    the kernel keeps no lists, or somebody hides and with him whom he started, every process is
    looked at.
    """
    me = os.getpid() if me is None else me
    hidden: set[int] = set()
    before = None
    for _ in range(_WALKS):
        hidden.clear()
        now = _walk(me, proc, hidden)
        if now is None:
            break
        if now == before and not hidden:
            return now
        before = now
    return _scan(me, proc, hidden)


def _walk(me: int, proc: str, hidden: set[int]) -> dict[int, bool] | None:
    """By lists of children; None where one can't be read. Who hides is added to `hidden`."""
    found: dict[int, bool] = {}
    left = [me]
    for pid in left:
        fields = stat_of(pid, proc)
        if not fields and kill(pid, 0):
            found[pid] = True
            hidden.add(pid)
            continue
        if not fields:
            return None  # its children have another parent now
        if pid != me:
            found[pid] = is_living(fields)
        try:
            threads = Path(f"{proc}/{pid}/task").iterdir()
            lists = [_read_all(f"{thread}/children") for thread in threads]
        except OSError:
            return None
        for children in lists:
            left.extend(map(int, children.split()))
    return found


def _scan(me: int, proc: str, hidden: Collection[int]) -> dict[int, bool]:
    """By everybody's parent, of whom some are known to hide.

    As `machine.below` does, which can't be imported here.
    """
    parents: dict[int, list[int]] = {}
    lives: dict[int, bool] = {}
    for entry in os.scandir(proc):
        fields = stat_of(int(entry.name), proc) if entry.name.isdigit() else []
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            lives[int(entry.name)] = is_living(fields)
    found = [child for root in (me, *hidden) for child in parents.get(root, ())]
    for pid in found:
        found.extend(parents.get(pid, ()))
    return dict.fromkeys(hidden, True) | {pid: lives[pid] for pid in found}


def descendants() -> list[int]:
    """All living processes below this one, deepest last."""
    return [pid for pid, lives in family().items() if lives]


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal, 0 for none; False for a process that is gone, or not ours to end."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap_orphans(but: int) -> None:
    """Collect dead grandchildren that fell to this process; the runner itself is Popen's."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == but:
            return
        os.waitpid(found.si_pid, 0)
