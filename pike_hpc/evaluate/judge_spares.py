"""Runners that were started ahead: importing torch takes longer than many an examination."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pike_hpc.evaluate.judge_host import Host
from pike_hpc.evaluate.judge_link import RunnerLink

SPARES = {"cpu": 1, "cuda": 3}
"""How many wait: a candidate's, and where there is room a new task's reference's and the next
candidate's. Many are refused within a second, and a runner that makes a GPU's context takes several
to start: with two, judges waited for runners in 15 to 18 % of their time (tests/bench/throughput.py
with warm caches, two H100s, 2026-11-27)."""

ROOM_BYTES = 8 << 30
"""With less of a GPU free, none is started ahead."""


class Spares:
    """Starts runners, some before anybody wants them; of those that wait none has run anything."""

    def __init__(
        self, host: Host, count: int, free_bytes: Callable[[], int] = lambda: ROOM_BYTES
    ) -> None:
        """At most `count` wait; `free_bytes` tells how much of the device's memory is free."""
        self._host, self._count, self._free_bytes = host, count, free_bytes
        self._short = False
        self._waiting: list[RunnerLink] = []

    def take(self, role: str) -> RunnerLink:
        """One for `role`, the lane's word for what it is to run: one that waits, else a new one."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if not spare.has_ended:
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
        """Whether there is room for one; the lane hears when that changes."""
        free_bytes = self._free_bytes()
        short = free_bytes < ROOM_BYTES
        if short and not self._short:
            free, wanted = free_bytes / 2**30, ROOM_BYTES / 2**30
            self._host.note(
                f"{free:.1f} GiB of the GPU are free: below {wanted:.0f} no runner starts ahead"
            )
        elif self._short and not short:
            self._host.note("runners start ahead again")
        self._short = short
        return not short


def free_on(device: torch.device) -> Callable[[], int]:
    """What tells a GPU's free memory; a CPU's runners are as light as any process."""
    if device.type == "cpu":
        return lambda: ROOM_BYTES
    return lambda: torch.cuda.mem_get_info(device)[0]
