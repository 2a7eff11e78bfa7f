"""Keeps one runner: starts it, drains what it prints, and ends it with everything below it.

A process of its own, standard library only, because being the reaper of orphans
(PR_SET_CHILD_SUBREAPER) is a property of a whole process and must not befall a program that
merely uses a `Lane`. Run as a script: `warden.py FD`, where FD is a socket to the lane. The first
line on it says what to start; each later line is `cpu`, `owns PID`, `stop`, `go`, `thaw`, `slay`,
`mark` (what was printed so far is forgotten) or `kill SECONDS-OF-GRACE`; after `slay` all below is
dead and the warden still answers. When the lane goes away the runner goes too.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TAIL_BYTES = 64 * 1024
"""How much of a runner's output is kept, from its end."""

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KILL_PATIENCE_S = 10.0
_STOP_PATIENCE_S = 10.0
"""Beside eight busy loops on two cores 32 processes took up to 2.7 s to rest (2026-11-23)."""
_PROC_BYTES = 1 << 14
_WALKS = 4
"""How often one looks at lists of children that change while one looks."""
_THREADS = 17
"""num_threads among the fields that `stat_of` gives (proc_pid_stat(5) counts from the pid)."""
_AT_REST = b"TtDZXI"
"""States of proc_pid_stat(5) in which a thread that was told to stop runs no more."""
_LAST_SWITCHES = 16
"""Of a thread that slept in the kernel when it was stopped, until the stop reached it."""
_FIRST_TO_GO = "800"
"""Of 1000 in proc_pid_oom_score_adj(5)."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


Threads = dict[str, tuple[bytes, int]]
"""By thread id: its state, and how often it was switched on or off a core."""


class Tail:
    """The last TAIL_BYTES of a stream."""

    def __init__(self) -> None:
        self._parts: collections.deque[bytes] = collections.deque()
        self._size = 0

    def add(self, part: bytes) -> None:
        """Append, forgetting what is too old."""
        self._parts.append(part)
        self._size += len(part)
        while self._parts and self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def text(self) -> str:
        """What is kept, undecodable bytes replaced."""
        return b"".join(self._parts)[-TAIL_BYTES:].decode("utf-8", "replace")


class Warden:
    """One runner and its descendants."""

    def __init__(self, channel: socket.socket, order: dict[str, Any]) -> None:
        self._channel = channel
        self._order = order
        self._tail = Tail()
        self._told = False
        self._stopped: dict[int, Threads] = {}
        self._engines: frozenset[int] = frozenset()
        """Who hid before any program was there, as what had privileges and gave them up does."""
        self._known: dict[int, bool] = {}
        """Who was there when all were stopped, and whether alive."""
        read, write = os.pipe()
        self._output = read
        self.child = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            start_new_session=True,
        )
        os.close(write)
        if order["first_to_go"]:
            _volunteer(self.child.pid)

    def keep(self, lines: bytes) -> None:
        """Until the lane says kill, or goes away. `lines`: what it has said already."""
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._output, select.POLLIN)
        while True:
            *whole, lines = lines.split(b"\n")
            if not all(map(self._obey, whole)):
                return
            # SIGCHLD interrupts nothing in Python; a short timeout notices the runner's end.
            ready = dict(waiting.poll(20))
            if self._output in ready and not self._drain():
                waiting.unregister(self._output)
            self._tell_end()
            if self._channel.fileno() in ready:
                try:
                    part = self._channel.recv(4096)
                except ConnectionError:
                    part = b""  # the lane was killed before it read all that we said
                if not part:
                    self._end()
                    with contextlib.suppress(OSError):
                        Path(self._order["cwd"]).rmdir()  # the lane was killed and left it empty
                    return
                lines += part

    def _obey(self, line: bytes) -> bool:
        """Do what a line says; False after the last."""
        verb, _, number = line.partition(b" ")
        if verb == b"kill":
            self._await_exit(float(number))
            self._end()
            return False
        if verb == b"cpu":
            self._say({"cpu_s": self._cpu_s()})
        elif verb == b"owns":
            below = descendants()
            self._engines = frozenset(pid for pid in below if not stat_of(pid))
            self._say({"held": int(number) in below})
        elif verb == b"slay":
            self._say({"held": not self._kill_all()})
        elif verb == b"mark":
            while select.select([self._output], [], [], 0)[0] and self._drain():
                pass
            self._tail = Tail()
            self._say({"marked": True})
        else:
            do = {b"stop": self._stop, b"go": self._go, b"thaw": self._thaw}[verb]
            self._say({"held": do()})
        return True

    def _drain(self) -> bool:
        part = os.read(self._output, 1 << 20)
        self._tail.add(part)
        return bool(part)

    def _tell_end(self) -> None:
        if not self._stopped:
            reap_orphans(self.child.pid)
        if not self._told and self.child.poll() is not None:
            self._told = True
            self._say({"ended": self.child.returncode})

    def _await_exit(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while self.child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def _end(self) -> None:
        """Kill all below, then hand over the exit status as it was before, and the tail."""
        before = self.child.poll()
        left = self._kill_all()
        os.set_blocking(self._output, False)
        try:
            while self._drain():
                pass
        except BlockingIOError:
            pass
        for place in self._order["remove"]:
            _remove(place)
        self._say({"killed": True, "status": before, "left": left, "tail": self._tail.text()})

    def _kill_all(self) -> int:
        """Kill all below; how many would not die."""
        self._stopped = {}  # of the dead nobody asks whether they kept still
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while (below := descendants()) and time.monotonic() < deadline:
            for pid in below:
                kill(pid)
            self.child.poll()
            reap_orphans(self.child.pid)
            time.sleep(0.002)
        return len(below)

    def _stop(self) -> bool:
        """Stop all below by SIGSTOP; False where something would not rest.

        A fork that was under way goes on to its end, so one looks again when all that is known has
        come to rest, until nobody is new. A thread counts as stopped a moment before its last
        switch is counted: what is noted must be the same before that look and after it.
        """
        self._stopped = {}
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while time.monotonic() < deadline:
            noted = self._stopped
            self._known = family()
            new = {pid for pid, lives in self._known.items() if lives} - set(noted)
            for pid in new:
                kill(pid, signal.SIGSTOP)
            if self._rests({*noted, *new}) and self._stopped == noted:
                return True
        return False

    def _rests(self, pids: set[int]) -> bool:
        """Whether every thread of these is at rest; how often each was switched is noted."""
        self._stopped = {pid: self._threads(pid) for pid in pids}
        return all(s in _AT_REST for t in self._stopped.values() for s, _ in t.values())

    def _threads(self, pid: int) -> Threads:
        return {} if pid in self._engines else threads_of(pid)

    def _nobody_came(self) -> bool:
        """Whether nobody is there, alive or dead, who was not when all were stopped."""
        return family().keys() <= self._known.keys()

    def _go(self) -> bool:
        """Let all go on; False where a thread ran meanwhile.

        A program can have a timer send it SIGCONT: how often its threads were switched tells. One
        that forks and exits faster than one can look leaves its dead, whom nobody buries meanwhile.
        """
        slept = all(slept_on(before, self._threads(p)) for p, before in self._stopped.items())
        slept = self._nobody_came() and slept
        for pid in reversed(self._stopped):
            kill(pid, signal.SIGCONT)
        self._stopped = {}
        return slept

    def _thaw(self) -> bool:
        """Let all go on that were stopped amid work; False where one ran meanwhile.

        Unlike `_go` it forgives whoever died.
        """
        held = self._nobody_came()
        for pid, before in self._stopped.items():
            now = self._threads(pid)
            held = slept_on({t: was for t, was in before.items() if t in now}, now) and held
        for pid in reversed(self._stopped):
            kill(pid, signal.SIGCONT)
        self._stopped = {}
        return held

    def _cpu_s(self) -> float:
        """CPU seconds of the runner and everything below it, the dead and its keeper included."""
        total = sum(os.times()[:4])
        for pid in descendants():
            fields = stat_of(pid)
            if fields:
                total += sum(int(x) for x in fields[11:15]) * _TICK_S
        return total

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # the lane is gone; the next read says so


def _remove(place: str) -> None:
    """Delete a folder however deep it is: shutil.rmtree ends where Python's stack does."""
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        subprocess.run(["rm", "-rf", "--", place], stderr=nothing, check=False)


def _volunteer(pid: int) -> None:
    """Name a process, and what it will start, to be killed first when the machine's memory ends."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_FIRST_TO_GO, "ascii")


def stat_of(pid: int, proc: str = "/proc") -> list[str]:
    """Fields of /proc/PID/stat after the command's name (state first); empty when it is gone."""
    text = _read(f"{proc}/{pid}/stat").decode("ascii", "replace")
    return text.rpartition(")")[2].split()


def threads_of(pid: int, proc: str = "/proc") -> Threads:
    """State of each thread and how often it was switched; empty when the process is gone.

    One that hides, as it can where /proc is mounted with hidepid, has a thread that never rests.
    """
    found: Threads = {}
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"{proc}/{pid}/task"):
            text = _read(f"{thread.path}/status")
            state = re.search(rb"^State:\s+(\S)", text, re.MULTILINE)
            switches = re.findall(rb"ctxt_switches:\s+(\d+)", text)
            letter = state[1] if state and switches else b"?"
            found[thread.name] = (letter, sum(map(int, switches)))
    return found if found or not kill(pid, 0) else {"": (b"?", 0)}


def slept_on(before: Threads, now: Threads) -> bool:
    """Whether the same threads rest as before, and ran no more than the end of a system call."""
    return before.keys() == now.keys() and all(
        state in _AT_REST
        and switches <= before[thread][1] + (_LAST_SWITCHES if before[thread][0] == b"D" else 0)
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
    the kernel keeps no lists, every process is looked at.
    """
    me = os.getpid() if me is None else me
    before = None
    for _ in range(_WALKS):
        now = _walk(me, proc)
        if now is None:
            break
        if now == before:
            return now
        before = now
    return _scan(me, proc)


def _walk(me: int, proc: str) -> dict[int, bool] | None:
    """By lists of children; None where one can't be read."""
    found: dict[int, bool] = {}
    left = [me]
    for pid in left:
        fields = stat_of(pid, proc)
        if not fields and kill(pid, 0):
            found[pid] = True  # it hides: `threads_of`
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


def _scan(me: int, proc: str) -> dict[int, bool]:
    """By everybody's parent."""
    parents: dict[int, list[int]] = {}
    lives: dict[int, bool] = {}
    for entry in os.scandir(proc):
        fields = stat_of(int(entry.name), proc) if entry.name.isdigit() else []
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            lives[int(entry.name)] = is_living(fields)
    found = list(parents.get(me, ()))
    for pid in found:
        found.extend(parents.get(pid, ()))
    return {pid: lives[pid] for pid in found}


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


def main() -> None:
    """Keep the runner that the first line of the channel orders."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the lane decides when the runner ends
    channel = socket.socket(fileno=int(sys.argv[1]))
    said = b""
    while b"\n" not in said:
        part = channel.recv(65536)
        if not part:
            return
        said += part
    order, _, more = said.partition(b"\n")
    Warden(channel, json.loads(order)).keep(more)


if __name__ == "__main__":
    main()
