"""The device for one judge alone: others frozen, and their kernels ended.

Freezing a process stops no kernel that it has queued. Whether any still runs shows in how long a
tiny kernel of ours takes: GPUs share their time between processes in slices of milliseconds, so
with a neighbour some of a run of tiny kernels wait for a slice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

import torch

from pike_hpc.evaluate.judge_context import make_context
from pike_hpc.evaluate.judge_host import Host

T = TypeVar("T")

RUN_S = 0.03
"""A run of probes; many time slices long, so that a neighbour meets some probe."""
SLICE_MS = 0.5
"""A probe that takes longer waited for somebody. Alone it takes 10 to 30 us."""
MAX_SLOW = 1
"""Slow probes in a run that an interrupt of the host may explain."""
GLANCE_S = 0.006
"""A run that shows a neighbour who computes all the time: three slices. One slow probe in it is
reason for a whole run."""
PATIENCE_S = 5.0
"""For kernels to end before the frozen candidates are killed, and once more afterwards."""
ATTEMPTS = 3
"""Of a measurement during which others ran although they were frozen."""


class Beside(Enum):
    """Who was on the device during a measurement, we and whom we measured apart."""

    NOBODY = auto()
    WHO_WAKES = auto()
    """Somebody who ran although it was frozen. Another time it may keep still."""
    KERNELS = auto()
    """Some that did not end, though the candidates of other lanes were killed for it."""


class Company:
    """Whether kernels of others run, stopped processes' among them."""

    def __init__(
        self, probe: Callable[[], float] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`probe`: runs a tiny kernel to its end; its milliseconds. None where none outlive us."""
        self._probe, self._clock = probe, clock

    def gone_within(self, seconds: float, *, glance: bool = False) -> bool:
        """Whether nobody is there, or nobody is any more in time.

        With `glance` a device that is quiet costs GLANCE_S; without, always a whole run.
        """
        if self._probe is None:
            return True
        end = self._clock() + seconds
        while self._clock() < end:
            if glance and self._slow(self._probe, GLANCE_S) == 0:
                return True
            if self._slow(self._probe, RUN_S) <= MAX_SLOW:
                return True
        return False

    def seen(self) -> bool:
        """Whether somebody is there now."""
        return not self.gone_within(GLANCE_S, glance=True)

    def _slow(self, probe: Callable[[], float], run_s: float) -> int:
        """Slow probes in a run, which ends early where there are too many."""
        end = self._clock() + run_s
        slow = 0
        while self._clock() < end and slow <= MAX_SLOW:
            slow += probe() > SLICE_MS
        return slow


class Solitude:
    """Has the device to itself while something is measured."""

    def __init__(self, host: Host, company: Company) -> None:
        self._host, self.company = host, company

    def during(
        self, runners: Sequence[int], measure: Callable[[], T], attempts: int = ATTEMPTS
    ) -> tuple[T, Beside]:
        """What `measure` gives with nobody but us and `runners` on the device, if it was so.

        Args:
            runners: whose processes are not frozen.
            measure: is called again where others would not keep still.
            attempts: how often at most.
        """
        for _ in range(attempts):
            self._host.phase("gate")
            self._host.alone(runners)
            try:
                self._host.phase("timing")
                quiet = self._drain()
                found = measure()
            finally:
                held = self._host.together()
                self._host.phase("checks")
            if not quiet:
                return found, Beside.KERNELS
            if held:
                return found, Beside.NOBODY
        return found, Beside.WHO_WAKES

    def _drain(self) -> bool:
        """Wait until nobody else's kernels run, killing candidates where they don't end."""
        if self.company.gone_within(PATIENCE_S):
            return True
        self._host.evict()
        return self.company.gone_within(PATIENCE_S)


def probe_on(device: torch.device) -> Callable[[], float] | None:
    """A tiny kernel on a GPU, run and waited for; a CPU has none that outlive their process."""
    if device.type != "cuda":
        return None
    make_context(device)  # nothing of the judge's was on the GPU before this
    place = torch.zeros(1, device=device)

    def probe() -> float:
        start = time.perf_counter_ns()
        place.add_(1)
        torch.cuda.synchronize(device)
        return (time.perf_counter_ns() - start) / 1e6

    return probe
