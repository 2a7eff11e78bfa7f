"""Which CPUs judge and runner spin on while a model is timed, and which are left for builds.

CPUs are not equally fast: they share a physical core with another one, or a virtual machine's host
with others, and an unchanged model is faster or slower by where the scheduler puts its process. So
both runners are timed on the same CPU, one at a time, the judge spins on one of another core, and
nothing else that we start runs on either core meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

from pike_hpc.machine import physical_cores

MIN_CORES = 3
"""The judge's, the runners', and one for everything else."""

BUILD_CPUS = 2
"""With fewer left to them than the compilers of one build, builds run anywhere."""

Cpus = tuple[int, ...]


def split(cpus: Collection[int], cores: Mapping[int, tuple[int, int]]) -> tuple[Cpus, Cpus]:
    """(the judge's CPU, the runners' CPU); both empty where there are too few physical cores.

    Args:
        cpus: those that may be used.
        cores: physical core of each CPU, as far as it is known.
    """
    if len({cores.get(cpu, (cpu,)) for cpu in cpus}) < MIN_CORES:
        return (), ()
    first: dict[tuple[int, ...], int] = {}
    for cpu, core in sorted(_cores(cpus, cores).items(), key=lambda item: (item[1], item[0])):
        first.setdefault(core, cpu)
    judge, runners, *_ = first.values()
    return (judge,), (runners,)


def for_builds(
    shares: Sequence[Collection[int]], cores: Mapping[int, tuple[int, int]]
) -> frozenset[int]:
    """The CPUs that share a core with none that is spun on; all where too few do.

    Args:
        shares: the CPUs of each device, whose lanes spin on two of them.
        cores: as for `split`.
    """
    all_ = frozenset[int]().union(*shares)
    core = _cores(all_, cores)
    spun = {core[cpu] for share in shares for own in split(share, cores) for cpu in own}
    left = frozenset(cpu for cpu in all_ if core[cpu] not in spun)
    return left if len(left) >= BUILD_CPUS else all_


def _cores(
    cpus: Collection[int], cores: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, ...]]:
    """The physical core of each CPU.

    Where each seems one of its own they may be halves all the same: a virtual machine hides that.
    Then CPUs 2n and 2n+1 are taken for one.
    """
    known: dict[int, tuple[int, ...]] = {cpu: cores.get(cpu, (cpu,)) for cpu in cpus}
    if len(set(known.values())) < len(known):
        return known
    return {cpu: (cpu // 2,) for cpu in cpus}


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
