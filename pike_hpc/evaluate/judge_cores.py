"""Which CPUs judge and runner spin on while a model is timed.

CPUs are not equally fast: they share a physical core with another one, or a virtual machine's host
with others, and an unchanged model is faster or slower by where the scheduler puts its process. So
both runners are timed on the same CPU, one at a time, and the judge spins on one that is no
neighbour of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping

import torch

from pike_hpc.machine import divide_cpus, physical_cores

MIN_CORES = 3
"""The judge's, the runner's, and one between them: a virtual machine that hides which CPUs share a
core counts them in pairs."""

Cpus = tuple[int, ...]


def split(cpus: Collection[int], cores: Mapping[int, tuple[int, int]]) -> tuple[Cpus, Cpus]:
    """(the judge's CPU, the runners' CPU); both empty where there are too few physical cores.

    Args:
        cpus: those that may be used.
        cores: physical core of each CPU, as far as it is known.
    """
    count = len({cores.get(cpu, (cpu,)) for cpu in cpus})
    if count < MIN_CORES:
        return (), ()
    parts = divide_cpus(cpus, count, cores)
    return (min(parts[0]),), (min(parts[2]),)


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
