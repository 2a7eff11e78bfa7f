"""The judge's side of its channel to the lane: ask for processes, report phases, hear of ends.

The judge never starts or kills anything itself; in a container it could not see the processes.
Knows nothing of what runners do.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.wire import LEFT, Channel, Gone

LAST_WORDS = 4000
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a runner ended."""

    status: int | None
    """Its exit status before it was killed (-N or 128+N for signal N), None if it still ran."""
    tail: str
    """The end of what it printed. Hostile text."""

    @property
    def last_words(self) -> str:
        """As much of its end as tells why."""
        return self.tail[-LAST_WORDS:]


class Host:
    """Requests to the lane, answered in order."""

    def __init__(self, channel: Channel, scratch: Path) -> None:
        self._channel = channel
        self._orders: list[dict[str, Any]] = []
        self._answers: list[dict[str, Any]] = []
        self._ended: set[int] = set()
        self._places = 0
        self._scratch = scratch

    def fileno(self) -> int:
        """For poll: readable means `pump` has something to do."""
        return self._channel.fileno()

    def place(self) -> Path:
        """A new folder for the socket of one runner, open for any uid to enter."""
        self._places += 1
        folder = self._scratch / f"r{self._places}"
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        return folder

    def leave(self, content: bytes) -> None:
        """Have the lane, and nobody else, find it as LEFT. Raises OSError."""
        path = self._scratch / LEFT
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)

    def spawn(self, role: str, socket: Path) -> int:
        """Start a runner that connects to `socket`; its number."""
        return int(self._ask(ask="spawn", role=role, socket=str(socket))["runner"])

    def appoint(self, runner: int, role: str) -> None:
        """A runner that was started ahead has its role now."""
        self._ask(ask="appoint", runner=runner, role=role)

    def owns(self, runner: int, pid: int) -> bool:
        """Whether a process is the runner's own, or below it."""
        return bool(self._ask(ask="owns", runner=runner, pid=pid)["held"])

    def kill(self, runner: int, grace_s: float) -> Ending:
        """End a runner and everything below it, after `grace_s` to end by itself."""
        answer = self._ask(ask="kill", runner=runner, grace_s=grace_s)
        self._ended.discard(runner)
        return Ending(status=answer["status"], tail=answer["tail"])

    def cpu_s(self, runner: int) -> float:
        """CPU seconds that the runner and everything below it used so far."""
        return float(self._ask(ask="cpu", runner=runner)["cpu_s"])

    def stop(self, runner: int) -> bool:
        """Stop the runner and everything below it; False where something would not rest."""
        return bool(self._ask(ask="stop", runner=runner)["held"])

    def go(self, runner: int) -> bool:
        """Let it go on after `stop`; False where it ran all the same."""
        return bool(self._ask(ask="go", runner=runner)["held"])

    def alone(self, runners: Sequence[int]) -> None:
        """Return when every process of other lanes, and ours but `runners`, is frozen."""
        self._ask(ask="alone", runners=list(runners))

    def together(self) -> bool:
        """Let them go on; False where one ran while it was frozen."""
        return bool(self._ask(ask="together")["held"])

    def evict(self) -> None:
        """Have the frozen lanes' candidates killed; they are judged again later, alone."""
        self._ask(ask="evict")

    def phase(self, name: str) -> None:
        """Say what is being done; also a sign of life."""
        self._channel.send(phase=name)

    def note(self, line: str) -> None:
        """Say something for the lane's log."""
        self._channel.send(note=line)

    def deliver(self, **message: Any) -> None:
        """Send the outcome of an order."""
        self._channel.send(**message)

    def has_ended(self, runner: int) -> bool:
        """Whether the lane has seen the runner's own process end."""
        return runner in self._ended

    def pump(self) -> None:
        """Sort what the lane sent. Raises Gone."""
        for message in self._channel.receive():
            if "ended" in message:
                self._ended.add(int(message["ended"]))
            elif "order" in message:
                self._orders.append(message)
            else:
                self._answers.append(message)

    def next_order(self) -> dict[str, Any] | None:
        """The next thing to do; None when the lane is gone."""
        try:
            while not self._orders:
                select.select([self._channel], [], [])
                self.pump()
        except Gone:
            return None
        return self._orders.pop(0)

    def _ask(self, **message: Any) -> dict[str, Any]:
        self._channel.send(**message)
        while not self._answers:
            self.pump()
        return self._answers.pop(0)
