"""How much of the cores somebody else used meanwhile: a busy machine makes false speedups.

With other work on the same cores the scheduler can favour one of two equal programs for seconds,
so that the interval is narrow and wrong. Nothing here repairs that; the result says `noisy`.
Reads /proc/stat, which counts the whole machine in containers too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from pike_hpc.evaluate.judge_link import RunnerLink

MAX_FOREIGN = 0.1
"""Part of the time of the cores that are watched."""

STAT = Path("/proc/stat")

_USED_FIELDS, _STOLEN_FIELD = (0, 1, 2, 5, 6), 7
"""user, nice, system, irq, softirq; and steal of proc_stat(5): what a virtual machine's host gave
to others."""

Share = tuple[float, float, float]
"""Of some cores, in seconds: used by anybody here, stolen by the host, used by ourselves."""


class Neighbours:
    """Watches from its making on."""

    def __init__(
        self,
        ours: Sequence[RunnerLink],
        judge: Collection[int] = (),
        runners: Collection[int] = (),
        stat: Path = STAT,
    ) -> None:
        """Cores that the judge and that the runners spin on: they are watched, each for its own.

        Where they spin on none, all that we may use are watched.
        """
        self._ours, self._stat = ours, stat
        mine, all_of_us = (self._judge_s,), (self._judge_s, self._runners_s)
        self._watched = (
            ((judge, mine), (runners, (self._runners_s,)))
            if judge and runners
            else ((os.sched_getaffinity(0), all_of_us),)
        )
        self._start = self._look()

    def noisy(self) -> bool:
        """Whether others used more than MAX_FOREIGN of these cores since the start.

        What we use elsewhere is none of it: no more is ours than the cores have had time.
        """
        (start, before), (end, after) = self._start, self._look()
        elapsed, taken, count = end - start, 0.0, 0
        for (cores, _), then, now in zip(self._watched, before, after, strict=True):
            used, stolen, own = (b - a for a, b in zip(then, now, strict=True))
            taken += stolen + max(0.0, used - min(own, elapsed * len(cores)))
            count += len(cores)
        return taken > MAX_FOREIGN * count * elapsed

    def _look(self) -> tuple[float, list[Share]]:
        """Seconds of the clock, and the shares of what is watched."""
        shares = [
            (*used_s(cores, self._stat), sum(each() for each in who))
            for cores, who in self._watched
        ]
        return time.monotonic(), shares

    def _judge_s(self) -> float:
        used = os.times()
        return used.user + used.system

    def _runners_s(self) -> float:
        return sum(link.cpu_s() for link in self._ours)


def used_s(cores: Collection[int], stat: Path = STAT) -> tuple[float, float]:
    """Seconds since boot that somebody used these cores, and that the host gave to others."""
    wanted = {f"cpu{core}" for core in cores}
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    used = stolen = 0
    for line in stat.read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in wanted:
            used += sum(int(fields[i]) for i in _USED_FIELDS)
            stolen += int(fields[_STOLEN_FIELD])
    return used * tick_s, stolen * tick_s
