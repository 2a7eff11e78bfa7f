"""All runners of one lane, by number: asked by its judge, frozen for others. No torch.

Knows nothing of judging. Not thread-safe: the lane lets one thread at a time in.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wire import RunnerRole


class Wards:
    """The runners that live, and which of them rest."""

    def __init__(self, start: Callable[[int, Path, RunnerRole], Ward]) -> None:
        self._start = start
        self._wards: dict[int, Ward] = {}
        self._roles: dict[int, RunnerRole] = {}
        self._resting: set[int] = set()
        """Stopped by their own judge: a freeze leaves them as they are."""
        self._frozen: set[int] = set()
        self._told: set[int] = set()
        self._count = 0

    def living(self) -> list[Ward]:
        """Those to wait for."""
        return [ward for ward in self._wards.values() if not ward.has_ended]

    def pump(self) -> None:
        """Take what wardens have said, without waiting: a freeze may have taken it before us."""
        for ward in select.select(self.living(), [], [], 0)[0]:
            ward.pump()

    def ended(self) -> list[int]:
        """Those that have ended since the last question."""
        new = [n for n, ward in self._wards.items() if ward.has_ended and n not in self._told]
        self._told.update(new)
        return new

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What the judge asked of a runner."""
        if message["ask"] == "spawn":
            role, socket = RunnerRole(message["role"]), Path(message["socket"])
            self._count += 1
            self._wards[self._count] = self._start(self._count, socket, role)
            self._roles[self._count] = role
            return {"runner": self._count}
        number = message["runner"]
        if message["ask"] == "appoint":
            self._roles[number] = RunnerRole(message["role"])
            return {"role": message["role"]}
        ward = self._wards.get(number)
        if message["ask"] == "kill":
            status, tail = ward.end(message["grace_s"]) if ward else (None, "")
            self._forget(number)
            return {"status": status, "tail": clean(tail)}
        if message["ask"] == "cpu":
            return {"cpu_s": ward.cpu_s() if ward else 0.0}
        return {"held": ward is not None and self._held(ward, number, message)}

    def _held(self, ward: Ward, number: int, message: dict[str, Any]) -> bool:
        """Whether the answer is yes."""
        if message["ask"] == "owns":
            return ward.owns(message["pid"])
        if message["ask"] == "stop":
            self._resting.add(number)
            return ward.stop()
        self._resting.discard(number)
        return ward.go()

    def freeze(self, but: Collection[int] = ()) -> bool:
        """Stop all but some, at once. One that would not rest is killed: False then."""
        chosen = {
            number: ward
            for number, ward in self._wards.items()
            if number not in but and number not in self._resting and not ward.has_ended
        }
        self._frozen |= set(chosen)
        restless = Ward.stop_all(chosen.values())
        return self._slay(restless)

    def thaw(self) -> bool:
        """Let them go on. One that ran all the same is killed: False then."""
        chosen = [ward for number, ward in self._wards.items() if number in self._frozen]
        self._frozen.clear()
        return self._slay(Ward.thaw_all(ward for ward in chosen if not ward.has_ended))

    def slay_candidates(self) -> None:
        """Kill all but the reference's."""
        reference = RunnerRole.REFERENCE
        self._slay([w for number, w in self._wards.items() if self._roles[number] != reference])

    def end(self) -> None:
        """Kill all."""
        for number, ward in list(self._wards.items()):
            ward.end()
            self._forget(number)

    def _slay(self, wards: list[Ward]) -> bool:
        for ward in wards:
            ward.slay()
        return not wards

    def _forget(self, number: int) -> None:
        self._wards.pop(number, None)
        self._roles.pop(number, None)
        for marks in (self._resting, self._frozen, self._told):
            marks.discard(number)
