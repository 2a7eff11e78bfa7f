"""The guards of one judge: NVML for the GPU that torch uses, and what was seen of each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace

import torch

from pike_hpc.evaluate.judge_anchor import Alone
from pike_hpc.evaluate.nvml import Gpu, NvmlError
from pike_hpc.evaluate.nvml_guard import (
    PAUSES_S,
    Anchor,
    Guard,
    History,
    Read,
    unread,
    usual,
)
from pike_hpc.evaluate.statistics import Estimate
from pike_hpc.records import Clocks, Timing

Measure = Callable[[Guard], tuple[Estimate, tuple[str, ...]]]
"""A timing under a guard: the estimate and its tags."""

TimeAlone = Callable[[Guard], tuple[Alone | None, bool]]
"""A timing of the reference with no candidate there, under a guard; None where it does not count,
for what the guard saw or because somebody else was on the device. Also whether one after it may."""

ATTEMPTS = 3
"""Timings of a reference alone until one counts, with pauses in between: a GPU that is hot, or a
neighbour, is so for seconds."""


class TaskWatch:
    """Makes guards for the timings of one task, and knows what is usual for it."""

    def __init__(
        self, read: Read, *, drifts: bool, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Looks by `read`; `drifts` says whether latencies of the reference are steady here."""
        self._read, self._drifts, self._sleep = read, drifts, sleep
        self._history = History()

    def guard(self) -> Guard:
        """Watch one timing, from now on."""
        return Guard(self._read, self._history, self._sleep)

    @property
    def anchor(self) -> Anchor | None:
        """What is known of the reference before any candidate was there."""
        return self._history.anchor

    def learn(self, time_alone: TimeAlone) -> None:
        """Have the reference timed before a candidate is there, where that tells anything."""
        if self._drifts and self.anchor is None:
            self.take(self._anchored(time_alone))

    def take(self, anchor: Anchor | None) -> None:
        """Hold the reference against what is known of it under other weights."""
        self._history.anchor = anchor

    def timed(self, measure: Measure) -> tuple[Estimate, tuple[str, ...], Clocks | None]:
        """What `measure` finds under a guard, and what the GPU said meanwhile.

        Measured once more where the reference was far from what is usual for it in this session.
        Where it is so again the tag is `noisy`; so it is where nothing is known of it alone.
        """
        for _ in range(2):
            guard = self.guard()
            found, tags = measure(guard)
            agrees = not self._drifts or self._history.agrees(found.reference_ms)
            if agrees:
                break
        if not agrees or (self._drifts and self.anchor is None):
            tags = tuple(sorted({*tags, "noisy"}))
        return found, tags, guard.clocks()

    def doubts(self, timing: Timing) -> bool:
        """Whether a timing's reference was slower than it can be by what is known of it alone."""
        return timing.reference_ms > self._history.most_ms

    def believed(self, timing: Timing, time_alone: TimeAlone) -> Timing:
        """A timing in doubt, its reference no slower than it can be with no candidate there.

        It is timed alone again: a machine that is busier than it was still is so, and what a
        candidate did has ended with it.

        Args:
            timing: of a candidate, which is gone.
            time_alone: as for `learn`.
        """
        now = self._anchored(time_alone)
        now_ms = now.most_ms(usual(self._history.sm_mhz)) if now else 0.0
        return at_most(timing, max(self._history.most_ms, now_ms))

    def _anchored(self, time_alone: TimeAlone) -> Anchor | None:
        """What is seen of the reference now; None where no timing counts."""
        for pause_s in (0.0, *PAUSES_S[: ATTEMPTS - 1]):
            self._sleep(pause_s)
            guard = self.guard()
            alone, may_count = time_alone(guard)
            if alone is not None:
                seen = guard.clocks()
                return Anchor(
                    latency_ms=alone.latency_ms,
                    nulls_ms=alone.nulls_ms,
                    sm_mhz=seen.sm_mhz if seen else None,
                )
            if not may_count:
                break
        return None


class Guards:
    """Those of one device."""

    def __init__(
        self,
        read: Read = unread,
        why_not: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Guards that look by `read`; where that shows nothing, `why_not` says why."""
        self._read, self.why_not, self._sleep = read, why_not, sleep
        self._tasks: dict[Hashable, TaskWatch] = {}

    @classmethod
    def of(cls, device: torch.device) -> Guards:
        """Those of a device of this machine; a CPU has none of these sensors."""
        if device.type != "cuda":
            return cls(why_not="a CPU's clock is not read")
        uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
        try:
            return cls(Gpu.open(f"GPU-{uuid}").sample)
        except NvmlError as error:
            return cls(why_not=str(error))

    def task(self, key: Hashable) -> TaskWatch:
        """The watch of one task and way of drawing weights, the same at every call.

        Drift is not looked for where no sensor is read: there is no telling a GPU that became
        slower from one that was made slower, and latencies on a shared CPU vary far more.
        """
        if key not in self._tasks:
            self._tasks[key] = TaskWatch(self._read, drifts=not self.why_not, sleep=self._sleep)
        return self._tasks[key]


def at_most(timing: Timing, reference_ms: float) -> Timing:
    """The same candidate held against a reference that takes no longer than this."""
    part = min(1.0, reference_ms / timing.reference_ms)
    low, high = timing.ci95
    return replace(
        timing,
        speedup=timing.speedup * part,
        ci95=(low * part, high * part),
        reference_ms=timing.reference_ms * part,
    )
