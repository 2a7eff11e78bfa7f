"""Which timed blocks count: not those of a slowed GPU, nor those that another process shared.

A look before and one after each block, outside all windows; before it at processes only where a
stranger was there at the last look. A block is measured again when a hardware slowdown was on, a
process appeared on the GPU, or the SM clock was under MIN_CLOCK of what is usual after the same
side's half. Every DISCARDS of them the guard waits; when waiting has not helped often enough it is
`worn` and the lane is noisy. Pairing makes up for a clock that changes slowly, so a change that
stays becomes the usual. No torch; the only clock is the `sleep` given.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pike_hpc.evaluate.nvml import HARDWARE, IDLE, POWER_CAP, Sample, named
from pike_hpc.records import Clocks

MIN_CLOCK = 0.9
"""Part of the usual SM clock below which a block does not count."""
USUAL, LEAST = 9, 3
"""What is usual is the median of the last USUAL values, once there are LEAST."""
DISCARDS = 3
"""Blocks that are discarded before the lane is left to cool."""
PAUSES_S = (1.0, 2.0, 4.0)
"""How long it is left; after the last the guard is worn by the next DISCARDS."""
VERDICTS = 5
"""Earlier latencies of a reference from which what is usual for it is known."""
DRIFT, DRIFT_MS = 0.02, 0.005
"""How far a reference's latency may lie from what is usual for the task, relatively and in
milliseconds: the protocol's constant is known to about that."""
SPREADS = 4.5
"""Multiples of the median deviation that it may lie off where the task's own latencies vary: three
times the standard deviation of a normal one, or most honest verdicts would be timed twice."""

SLACK = 1.1
"""How much slower than alone a reference may be beside a candidate: hotter, after other work."""

Read = Callable[[bool], Sample]
"""A look at a GPU, at its processes too where it is given True."""


def unread(processes: bool) -> Sample:
    """A look that shows nothing: no NVML, no GPU."""
    del processes
    return Sample()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A reference's latency with no candidate there."""

    latency_ms: float
    sm_mhz: float | None
    """The clock that it had, where that is read."""
    nulls_ms: Mapping[int, float] = field(default_factory=dict)
    """The protocol's constant then, by how many calls share a window."""

    def most_ms(self, sm_mhz: float | None) -> float:
        """What it may take at a clock of now."""
        return self._most_ms(self.latency_ms, sm_mhz)

    def most_null_ms(self, calls: int, sm_mhz: float | None) -> float:
        """What the constant may be at a clock of now, by the same measure: copies slow down too.

        A larger one takes as much off both sides, and makes whoever is faster seem faster still.
        """
        known = self.nulls_ms.get(calls)
        return math.inf if known is None else self._most_ms(known, sm_mhz)

    def _most_ms(self, alone_ms: float, sm_mhz: float | None) -> float:
        slower = max(1.0, self.sm_mhz / sm_mhz) if self.sm_mhz and sm_mhz else 1.0
        return SLACK * slower * alone_ms + DRIFT_MS


@dataclass(slots=True)
class History:
    """What one judge saw of one task's reference, from candidate to candidate."""

    sm_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=USUAL))
    """After halves of the reference."""
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL))
    anchor: Anchor | None = None

    def agrees(self, reference_ms: float) -> bool:
        """Whether a latency of the reference is as usual.

        It is remembered either way: where it stays, it becomes the usual. Whoever wants to slow
        the reference unseen must do so in most of the last USUAL verdicts, and no more than the
        anchor leaves.
        """
        known = list(self.latencies_ms)
        self.latencies_ms.append(reference_ms)
        if reference_ms > self.most_ms:
            return False
        if len(known) < VERDICTS:
            return True
        usual = median(known)
        spread = median(abs(x - usual) for x in known)
        return abs(reference_ms - usual) <= max(DRIFT * usual, DRIFT_MS, SPREADS * spread)

    @property
    def most_ms(self) -> float:
        """What the reference can take by itself at its clock of now, as far as that is known."""
        return self.anchor.most_ms(usual(self.sm_mhz)) if self.anchor else math.inf

    def most_null_ms(self, calls: int) -> float:
        """What the constant can be in windows of so many calls, as far as that is known."""
        return self.anchor.most_null_ms(calls, usual(self.sm_mhz)) if self.anchor else math.inf


@dataclass(slots=True)
class Patience:
    """How many discards a timing bears. Knows no clock."""

    discarded: int = 0

    def discard(self) -> float:
        """Count one; the seconds to wait now."""
        self.discarded += 1
        rounds, rest = divmod(self.discarded, DISCARDS)
        return PAUSES_S[rounds - 1] if rest == 0 and rounds <= len(PAUSES_S) else 0.0

    @property
    def worn(self) -> bool:
        """Whether waiting has been tried often enough."""
        return self.discarded >= DISCARDS * (len(PAUSES_S) + 1)


def faults(
    before: Sample, after: Sample, known: frozenset[int] | None, usual_mhz: float | None
) -> tuple[str, ...]:
    """Why a block does not count; empty where it does.

    Args:
        before: the look before it.
        after: the look after it.
        known: processes that were on the GPU when the timing began; None where that is unread.
        usual_mhz: the SM clock after such a block; None where too little is known.
    """
    found = list(named(((before.reasons or 0) | (after.reasons or 0)) & HARDWARE))
    there = (before.processes or frozenset()) | (after.processes or frozenset())
    if known is not None and there - known:
        found.append("another process on the GPU")
    capped = (after.reasons or 0) & POWER_CAP
    if usual_mhz and after.sm_mhz and after.sm_mhz < MIN_CLOCK * usual_mhz and not capped:
        found.append(f"SM clock at {after.sm_mhz} of {usual_mhz:.0f} MHz")
    return tuple(found)


class Guard:
    """Watches one timing."""

    def __init__(
        self, read: Read, history: History, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Nothing is looked at before `begin`."""
        self._read, self._history, self._sleep = read, history, sleep
        self._patience = Patience()
        self._candidate_mhz: deque[int] = deque(maxlen=USUAL)
        self._before = Sample()
        self._known: frozenset[int] | None = None
        self._there: frozenset[int] | None = None
        """Who was on the GPU after the last block."""
        self._looks: list[Sample] = []
        self._faults: tuple[str, ...] = ()

    def begin(self) -> None:
        """The device is ours now: processes that are on it belong there, such as frozen ones."""
        self._before = self._read(True)
        self._known = self._there = self._before.processes

    def before(self) -> None:
        """A block begins."""
        strange = self._there is None or not self._there <= (self._known or frozenset())
        look = self._read(strange)  # a stranger may have left while we waited
        self._before = look if strange else replace(look, processes=self._there)

    def after(self, *, reference_last: bool, company: bool = False) -> bool:
        """A block has ended; whether it counts. Waits where too many do not.

        Args:
            reference_last: whose half ended it: each side has a clock of its own, since each
                draws its own power.
            company: whether kernels of somebody else ran at the end of the reference's half.
        """
        look = self._read(True)
        self._there = look.processes
        self._looks += [self._before, look]
        clocks = self._history.sm_mhz if reference_last else self._candidate_mhz
        found = faults(self._before, look, self._known, usual(clocks))
        found += ("kernels beside the reference",) if company else ()
        if look.sm_mhz:
            clocks.append(look.sm_mhz)
        if not found:
            return True
        self._faults = found
        pause_s = self._patience.discard()
        if pause_s:
            self._sleep(pause_s)
        return False

    @property
    def worn(self) -> bool:
        """Whether too many blocks were discarded, waiting included: the lane is noisy."""
        return self._patience.worn

    @property
    def why(self) -> str:
        """What was wrong with the block discarded last."""
        return ", ".join(self._faults)

    def most_null_ms(self, calls: int) -> float:
        """What the protocol's constant can be in windows of so many calls; inf where unknown."""
        return self._history.most_null_ms(calls)

    def over_ms(self, nulls_ms: Mapping[int, float]) -> float:
        """What of a constant counts as the model's own time, since it can't be so large.

        Args:
            nulls_ms: the constant, by calls that share a window; the least of what is over in any.
        """
        over = (ms - self.most_null_ms(calls) for calls, ms in nulls_ms.items())
        return max(0.0, min(over))

    def clocks(self) -> Clocks | None:
        """The record of what was seen; None where nothing could be read."""
        ends = [look.sm_mhz for look in self._looks[1::2] if look.sm_mhz]
        reasons = 0
        for look in self._looks:
            reasons |= look.reasons or 0
        heat = [look.temperature_c for look in self._looks if look.temperature_c is not None]
        power = [look.power_w for look in self._looks if look.power_w is not None]
        if not (ends or heat or power or reasons or self._patience.discarded):
            return None
        return Clocks(
            sm_mhz=median(ends) if ends else None,
            lowest_sm_mhz=min(ends, default=None),
            slowdowns=named(reasons & ~IDLE),
            temperature_c=max(heat, default=None),
            power_w=max(power, default=None),
            discarded=self._patience.discarded,
        )


def usual(values: Sequence[float]) -> float | None:
    """The median, where there are enough."""
    return median(values) if len(values) >= LEAST else None
