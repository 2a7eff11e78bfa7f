"""Runners that were started ahead: importing torch takes longer than many an examination."""

from __future__ import annotations

import torch

from pike_hpc.evaluate.judge_host import Host
from pike_hpc.evaluate.judge_link import RunnerLink

SPARES = {"cpu": 1, "cuda": 2}
"""How many wait: a candidate's, and where there is room a new task's reference's."""

ROOM_BYTES = 8 << 30
"""With less of a GPU free, none is started ahead."""


class Spares:
    """Starts runners, some before anybody wants them; of those that wait none has run anything."""

    def __init__(self, host: Host, device: torch.device, count: int) -> None:
        """At most `count` wait."""
        self._host, self._device, self._count = host, device, count
        self._waiting: list[RunnerLink] = []

    def take(self, role: str) -> RunnerLink:
        """One for `role`, the lane's word for what it is to run: one that waits, else a new one."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if not self._host.has_ended(spare.number):
                self._host.appoint(spare.number, role)
                return spare
            spare.end()
        return RunnerLink(self._host, role)

    def fill(self) -> None:
        """Have as many wait as there is room for."""
        while len(self._waiting) < self._count and self._has_room():
            self._waiting.append(RunnerLink(self._host, "spare"))

    def end(self) -> None:
        """End those that wait."""
        while self._waiting:
            self._waiting.pop().end()

    def _has_room(self) -> bool:
        on_cpu = self._device.type == "cpu"
        return on_cpu or torch.cuda.mem_get_info(self._device)[0] >= ROOM_BYTES
