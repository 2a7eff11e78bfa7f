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

_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq, steal of proc_stat(5)."""


class Neighbours:
    """Watches from its making on."""

    def __init__(
        self, ours: Sequence[RunnerLink], cores: Collection[int] = (), stat: Path = STAT
    ) -> None:
        """`cores`: those that judge and runners spin on; all that we may use where they don't."""
        self._ours, self._stat = ours, stat
        self._cores = frozenset(cores) or frozenset(os.sched_getaffinity(0))
        self._start = self._look()

    def noisy(self) -> bool:
        """Whether others used more than MAX_FOREIGN of these cores since the start."""
        elapsed, busy, own = (b - a for a, b in zip(self._start, self._look(), strict=True))
        return busy - own > MAX_FOREIGN * len(self._cores) * elapsed

    def _look(self) -> tuple[float, float, float]:
        """Seconds of the clock, of the cores being busy, and of our own CPU time."""
        used = os.times()
        own = used.user + used.system + sum(link.cpu_s() for link in self._ours)
        return time.monotonic(), busy_s(self._cores, self._stat), own


def busy_s(cores: Collection[int], stat: Path = STAT) -> float:
    """Seconds that these cores were not idle since boot."""
    wanted = {f"cpu{core}" for core in cores}
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    total = 0
    for line in stat.read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in wanted:
            total += sum(int(fields[i]) for i in _BUSY_FIELDS)
    return total * tick_s
