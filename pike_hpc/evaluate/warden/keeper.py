"""One runner: it is started, its output drained, and it is ended with everything below it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from .processes import (
    AT_REST,
    Threads,
    descendants,
    family,
    kill,
    reap_orphans,
    slept_on,
    stat_of,
    threads_of,
)
from .tail import Tail

_KILL_PATIENCE_S = 10.0
_STOP_PATIENCE_S = 10.0
"""Beside eight busy loops on two cores 32 processes took up to 2.7 s to rest (2026-11-23)."""
_FIRST_TO_GO = "800"
"""Of 1000 in proc_pid_oom_score_adj(5)."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


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
            self._engines = frozenset(p for p in below if not stat_of(p) and kill(p, 0))
            self._say({"held": int(number) in below})
        elif verb == b"slay":
            left = self._kill_all()
            self._tell_end()  # before the answer: nobody is to be given a runner that was slain
            self._say({"held": not left})
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
        switch is counted: what is noted must be the same in two looks (`threads_of`).
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
        return all(s in AT_REST for t in self._stopped.values() for s, _ in t.values())

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
