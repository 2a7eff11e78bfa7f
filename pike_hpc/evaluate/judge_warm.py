"""What a judge keeps between orders: the last tasks' references, and runners started ahead.

All of it can be made again: where memory is short, it gives way.
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable

import torch

from pike_hpc.evaluate.judge_admission import Yardstick
from pike_hpc.evaluate.judge_bench import Bench, Shortage
from pike_hpc.evaluate.judge_exam import Exam
from pike_hpc.evaluate.judge_failures import cannot_share
from pike_hpc.evaluate.judge_host import Ending, Host
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_memory import Place, best_place
from pike_hpc.evaluate.judge_room import PLENTY_BYTES, ROOM_BYTES, free_on, keeps_much
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_spares import SPARES, Spares
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.machine import available_memory_bytes
from pike_hpc.records import Task

WARM_TASKS = {"cpu": 2, "cuda": 4}
"""Tasks whose reference runner and float64 twin are kept, while there is room."""

FREE_ON_HOST = {"cpu": 1 << 30, "cuda": 8 << 30}
"""With less of the host's memory free, kept tasks make room for a new one: large answers lie there
(level3-pike/6 keeps 12 GB), and as many judges share a machine as it has lanes."""


class Warm:
    """The benches of the last tasks, and the spare runners."""

    def __init__(
        self,
        host: Host,
        device: torch.device,
        spares: bool,
        free_on_host: Callable[[], int | None] = available_memory_bytes,
        free_on_device: Callable[[], int] | None = None,
    ) -> None:
        """Both tell how many bytes of memory may still be taken."""
        self._host, self._device, self._free_on_host = host, device, free_on_host
        self._free_on_device = free_on_device or free_on(device)
        self.spares = Spares(host, SPARES[device.type] if spares else {}, self._free_on_device)
        self._secrets = Secrets(os.urandom(32))
        self._benches: collections.OrderedDict[str, Bench] = collections.OrderedDict()
        self.place, why = best_place(device)
        """Where inputs and outputs lie."""
        self._shares = False
        """Whether a runner was ever given its buffers."""
        if why:
            sys.stderr.write(f"inputs and outputs go through host memory: {why}\n")

    def bench(self, task: Task) -> Bench:
        """The task's own, made where it is not kept. Raises TaskRefused.

        On a GPU that is short of memory all give back what holds nothing; where it is short still
        the others of this judge rest, the longest unused first.
        """
        if self._free_on_device() < ROOM_BYTES:
            self.shed()
        if task.digest not in self._benches:
            self._host.phase("reference")
            while self._benches and self._is_full():
                self._benches.popitem(last=False)[1].close()
            self._benches[task.digest] = Bench(
                task, self.spares, self._device, self.place, self._secrets
            )
        self._benches.move_to_end(task.digest)
        for other in list(self._benches.values())[:-1]:
            if self._free_on_device() >= ROOM_BYTES:
                break
            other.rest()
        return self._benches[task.digest]

    def shed(self) -> None:
        """Give back device memory that holds nothing any more, when an order is done.

        Where there is plenty the next order takes as much: it is kept, until there is less.
        """
        is_short = self._free_on_device() < PLENTY_BYTES
        if self._device.type == "cuda" and (is_short or keeps_much(self._device)):
            torch.cuda.empty_cache()
        if not is_short:
            return
        for digest, bench in list(self._benches.items()):
            try:
                bench.shed()
            except RunnerFailed:
                self._benches.pop(digest).close()

    def forget(self, task: Task) -> Ending | None:
        """Keep nothing of a task that something went wrong with; how its reference ended."""
        bench = self._benches.pop(task.digest, None)
        return None if bench is None else bench.close()

    def rest(self) -> None:
        """Let go of the device's memory; what was found out about tasks stays."""
        self.spares.end()
        for bench in self._benches.values():
            bench.rest()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def truth(self, bench: Bench, by: WeightsBy) -> tuple[Truth, Yardstick]:
        """The truth of a task; other tasks give way where memory is short."""
        try:
            return bench.truth(by)
        except torch.OutOfMemoryError:
            if not self._evict_all_but(bench):
                raise
        torch.cuda.empty_cache()
        return bench.truth(by)

    def reference(self, bench: Bench, by: WeightsBy, secrets: Secrets) -> tuple[Exam, RunnerLink]:
        """What a candidate is held against; other tasks give way where memory is short.

        Raises:
            RunnerFailed: of the reference.
            Shortage: there is no room even so.
        """
        try:
            return self._reference(bench, by, secrets)
        except Shortage:
            if not self._evict_all_but(bench):
                raise
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._reference(bench, by, secrets)

    def moves_to_host(self, failed: Exception) -> bool:
        """Whether buffers lie on the host from now on: a runner can't map the GPU's."""
        if self.place is Place.HOST or self._shares or not cannot_share(failed):
            return False
        sys.stderr.write(f"inputs and outputs go through host memory from now on: {failed}\n")
        self.place = Place.HOST
        while self._benches:
            self._benches.popitem()[1].close()
        return True

    def _is_full(self) -> bool:
        """Whether a task must go before another one comes."""
        if len(self._benches) >= WARM_TASKS[self._device.type]:
            return True
        free = self._free_on_host()
        return free is not None and free < FREE_ON_HOST[self._device.type]

    def _reference(self, bench: Bench, by: WeightsBy, secrets: Secrets) -> tuple[Exam, RunnerLink]:
        exam = bench.exam(by, secrets)
        reference = bench.reference(by, secrets)
        self._shares = True
        if by is WeightsBy.STATE:  # afterwards the candidate is there, and has its room
            bench.demand_room()
        return exam, reference

    def _evict_all_but(self, bench: Bench) -> bool:
        """Close every other task's bench; False where there is none."""
        self.spares.end()
        others = [digest for digest, kept in self._benches.items() if kept is not bench]
        for digest in others:
            self._benches.pop(digest).close()
        return bool(others)
