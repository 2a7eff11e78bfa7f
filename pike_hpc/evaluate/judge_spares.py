"""Runners that were started ahead: importing torch takes longer than many an examination."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

from pike_hpc.evaluate.judge_host import Host
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_room import ROOM_BYTES
from pike_hpc.evaluate.wire import RunnerRole

SPARES = {"cpu": {RunnerRole.WIDE: 1}, "cuda": {RunnerRole.WIDE: 1, RunnerRole.NARROW: 3}}
"""How many wait, and in which order they start: on a GPU one for the reference of a new task and
three for candidates. Many of these are refused within a second, and a runner that makes a GPU's
context takes several to start: with two in all, judges waited for runners in 15 to 18 % of their
time (tests/bench/throughput.py with warm caches, two H100s, 2026-11-27), with three in 8 % on four
H200s (2026-11-28)."""

AT_ONCE = 2
"""Started for each candidate: where all are missing, they and what is needed now would keep each
other waiting."""


class Spares:
    """Starts runners, some before anybody wants them; of those that wait none has run anything."""

    def __init__(
        self,
        host: Host,
        wanted: Mapping[RunnerRole, int],
        free_bytes: Callable[[], int] = lambda: ROOM_BYTES,
    ) -> None:
        """Nobody waits yet.

        Args:
            host: starts runners.
            wanted: how many wait at most, by whose place they can take.
            free_bytes: tells how much of the device's memory is free.
        """
        self._host, self._wanted, self._free_bytes = host, Counter(wanted), free_bytes
        self._short = False
        self._waiting: list[tuple[RunnerRole, RunnerLink]] = []

    def take(self, role: RunnerRole) -> RunnerLink:
        """One for `role`: one that waits and has as many connections, else a new one."""
        for each in list(self._waiting):
            started, spare = each
            if started.one_connection is not role.one_connection:
                continue
            self._waiting.remove(each)
            if not spare.has_ended:
                self._host.appoint(spare.number, role)
                return spare
            spare.end()
        return RunnerLink(self._host, role)

    def fill(self, *, all_wide: bool = False) -> None:
        """Have at most AT_ONCE more wait, where there is room; `all_wide`: with all connections."""
        wanted = Counter({RunnerRole.WIDE: self._wanted.total()}) if all_wide else self._wanted
        for each in list(self._waiting):
            if not wanted[each[0]]:
                self._waiting.remove(each)
                each[1].end()
        missing = wanted - Counter(role for role, _ in self._waiting)
        for role in itertools.islice(missing.elements(), AT_ONCE):
            if not self._has_room():
                return
            self._waiting.append((role, RunnerLink(self._host, role)))

    def end(self) -> None:
        """End those that wait."""
        while self._waiting:
            self._waiting.pop()[1].end()

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
