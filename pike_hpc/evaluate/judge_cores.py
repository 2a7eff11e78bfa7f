"""Which CPUs judge and runner spin on while a model is timed.

Two threads of one physical core slow each other by more than half when both spin: on an H200
machine with 16 CPUs an unchanged ResNet18 took 1.7 ms or 2.7 ms by where the scheduler had put
them (2026-11-21). So the judge keeps one core to itself, and runners have the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping

import torch

from pike_hpc.machine import divide_cpus, physical_cores

MIN_CORES = 3
"""The judge's, the runner's, and one for what the model itself and the system do meanwhile."""

Cpus = tuple[int, ...]


def split(cpus: Collection[int], cores: Mapping[int, tuple[int, int]]) -> tuple[Cpus, Cpus]:
    """(the judge's CPUs, the runners'); both empty where there are too few physical cores.

    Args:
        cpus: those that may be used.
        cores: physical core of each CPU, as far as it is known.
    """
    count = len({cores.get(cpu, (cpu,)) for cpu in cpus})
    if count < MIN_CORES:
        return (), ()
    judge, *others = divide_cpus(cpus, count, cores)
    return tuple(sorted(judge)), tuple(sorted(cpu for part in others for cpu in part))


def spin_cpus(device: torch.device) -> tuple[Cpus, Cpus]:
    """Likewise for this process; both empty on a CPU, whose cores are the model's."""
    if device.type != "cuda":
        return (), ()
    cpus = os.sched_getaffinity(0)
    return split(cpus, physical_cores(cpus))


@contextlib.contextmanager
def on_own_core(cpus: Cpus) -> Iterator[None]:
    """This thread on `cpus` alone meanwhile, where there are any."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
