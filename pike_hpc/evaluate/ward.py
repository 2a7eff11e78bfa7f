"""The lane's side of one warden: start a runner, ask for its CPU time, end it.

Knows how to talk to `warden` and nothing of judging.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.alone import START
from pike_hpc.evaluate.wire import Channel, Gone
from pike_hpc.machine import buried

_WARDEN = Path(__file__).with_name("warden")


class Ward:
    """One runner under a warden."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        remove: Sequence[Path],
        first_to_go: bool = True,
        patience_s: float = 30.0,
    ) -> None:
        """Start it.

        Args:
            argv: what to run.
            env: its whole environment.
            cwd: where it starts; removed, if empty, when we are killed.
            remove: deleted when it has ended, by the warden itself.
            first_to_go: whether the kernel kills it before others when the machine's memory ends.
            patience_s: how long the warden may take to answer.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._warden = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", START, str(_WARDEN), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._patience_s = patience_s
        self.has_ended = self._gone = False
        self._answers: list[dict[str, Any]] = []
        self._late = 0
        """Answers that were given up, and may come yet."""
        order = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd),
            "remove": [str(p) for p in remove],
            "first_to_go": first_to_go,
        }
        self._tell(**order)

    def fileno(self) -> int:
        """For poll: readable means `pump` has news."""
        return self._channel.fileno()

    def pump(self) -> bool:
        """Take what the warden said; True when the runner has just ended."""
        before = self.has_ended
        try:
            for message in self._channel.receive():
                if "ended" in message:
                    self.has_ended = True
                else:
                    self._answers.append(message)
        except Gone:
            self.has_ended = self._gone = True
        return self.has_ended and not before

    def cpu_s(self) -> float:
        """CPU seconds of everything below the warden; 0 when it is gone."""
        return float(self._ask(b"cpu\n").get("cpu_s", 0.0))

    def owns(self, pid: int) -> bool:
        """Whether a process of this machine is below the warden."""
        return bool(self._ask(b"owns %d\n" % pid).get("held", False))

    def stop(self) -> bool:
        """Stop everything below the warden; False where something would not rest."""
        return bool(self._ask(b"stop\n").get("held", False))

    def go(self) -> bool:
        """Let it go on after `stop`; False where it ran all the same."""
        return bool(self._ask(b"go\n").get("held", False))

    def slay(self) -> None:
        """Kill everything below; the log and the exit status are there until `end`."""
        self._ask(b"slay\n")

    def mark(self) -> None:
        """What it printed so far is no part of what `end` returns."""
        self._ask(b"mark\n")

    def end(self, grace_s: float = 0.0) -> tuple[int | None, str]:
        """Kill everything below; the runner's own exit status if it had one, and its log's end."""
        answer = self._ask(b"kill %.3f\n" % grace_s)
        self._channel.close()
        try:
            self._warden.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._warden.kill()
            buried(self._warden)
        return answer.get("status"), str(answer.get("tail", ""))

    def _ask(self, line: bytes) -> dict[str, Any]:
        return self._answer() if self._say(line) else {}

    def _say(self, line: bytes) -> bool:
        try:
            self._channel.send_line(line)
        except Gone:
            return False
        return True

    def _answer(self) -> dict[str, Any]:
        while True:
            while self._answers:
                answer = self._answers.pop(0)
                if not self._late:
                    return answer
                self._late -= 1
            if self._gone:
                return {}
            if not select.select([self._channel], [], [], self._patience_s)[0]:
                self._late += 1
                return {}
            self.pump()

    @staticmethod
    def stop_all(wards: Iterable[Ward]) -> list[Ward]:
        """Stop many at the same time; those where something would not rest."""
        return Ward._order_all(wards, b"stop\n")

    @staticmethod
    def thaw_all(wards: Iterable[Ward]) -> list[Ward]:
        """Let many go on that were stopped amid work; those that ran all the same."""
        return Ward._order_all(wards, b"thaw\n")

    @staticmethod
    def _order_all(wards: Iterable[Ward], line: bytes) -> list[Ward]:
        told = [ward for ward in wards if ward._say(line)]
        answers = [(ward, ward._answer()) for ward in told]
        return [ward for ward, answer in answers if not answer.get("held", ward.has_ended)]

    def _tell(self, **message: Any) -> None:
        try:
            self._channel.send(**message)
        except Gone:
            self.has_ended = self._gone = True
