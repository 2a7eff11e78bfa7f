"""The device for one judge alone: others frozen, and their kernels ended.

Freezing a process stops no kernel that it has queued. Whether any still runs shows in how long a
tiny kernel of ours takes: GPUs share their time between processes in slices of milliseconds, so
with a neighbour some of a run of tiny kernels wait for a slice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from pike_hpc.evaluate.judge_host import Host

T = TypeVar("T")

RUN_S = 0.03
"""A run of probes; many time slices long, so that a neighbour meets some probe."""
SLICE_MS = 0.5
"""A probe that takes longer waited for somebody. Alone it takes 10 to 30 us."""
MAX_SLOW = 1
"""Slow probes in a run that an interrupt of the host may explain."""
PATIENCE_S = 5.0
"""For kernels to end before the frozen candidates are killed, and once more afterwards."""
ATTEMPTS = 3
"""Of a measurement during which others ran although they were frozen."""


class Solitude:
    """Has the device to itself while something is measured."""

    def __init__(
        self,
        host: Host,
        probe: Callable[[], float] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`probe`: runs a tiny kernel to its end; its milliseconds. None where none is needed."""
        self._host, self._probe, self._clock = host, probe, clock

    def during(self, runners: Sequence[int], measure: Callable[[], T]) -> tuple[T, bool]:
        """What `measure` gives with nobody but us and `runners` on the device.

        Also whether it was so; where not, others would not keep still.
        """
        for _ in range(ATTEMPTS):
            self._host.phase("gate")
            self._host.alone(runners)
            try:
                self._host.phase("timing")
                quiet = self._drain()
                found = measure()
            finally:
                held = self._host.together()
            if held:
                break
        return found, quiet and held

    def _drain(self) -> bool:
        """Wait until nobody else's kernels run, killing candidates where they don't end."""
        if self._probe is None or self._quiet_within(self._probe):
            return True
        self._host.evict()
        return self._quiet_within(self._probe)

    def _quiet_within(self, probe: Callable[[], float]) -> bool:
        end = self._clock() + PATIENCE_S
        while self._clock() < end:
            if self._is_quiet(probe):
                return True
        return False

    def _is_quiet(self, probe: Callable[[], float]) -> bool:
        end = self._clock() + RUN_S
        slow = 0
        while self._clock() < end and slow <= MAX_SLOW:
            slow += probe() > SLICE_MS
        return slow <= MAX_SLOW


def probe_on(device: torch.device) -> Callable[[], float] | None:
    """A tiny kernel on a GPU, run and waited for; a CPU has none that outlive their process."""
    if device.type != "cuda":
        return None
    place = torch.zeros(1, device=device)

    def probe() -> float:
        start = time.perf_counter_ns()
        place.add_(1)
        torch.cuda.synchronize(device)
        return (time.perf_counter_ns() - start) / 1e6

    return probe
