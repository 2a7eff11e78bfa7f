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
    judge, runners = _two_cores(cpus, cores)
    return tuple(sorted(judge)[:1]), tuple(sorted(runners)[:1])


def beside(cpus: Collection[int], cores: Mapping[int, tuple[int, int]]) -> frozenset[int]:
    """Those of these CPUs that share a core with none that is spun on, for work that can wait."""
    return frozenset(cpus).difference(*_two_cores(cpus, cores))


def _two_cores(
    cpus: Collection[int], cores: Mapping[int, tuple[int, int]]
) -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs of the judge's core and of the runners'; both empty where there are too few.

    Where each CPU seems a core of its own, that is hidden or not so: they are taken in pairs.
    """
    count = len({cores.get(cpu, (cpu,)) for cpu in cpus})
    if count < MIN_CORES:
        return frozenset(), frozenset()
    parts = divide_cpus(cpus, count, cores)
    size = 1 if any(len(part) > 1 for part in parts) else 2
    return parts[0].union(*parts[1:size]), parts[2].union(*parts[3 : 2 + size])


def spin_cpus(device_type: str) -> tuple[Cpus, Cpus]:
    """`split` for this process; both empty on a CPU, whose cores are the model's."""
    if device_type != "cuda":
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
