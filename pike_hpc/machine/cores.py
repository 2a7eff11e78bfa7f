"""Which CPUs share a physical core, and how a process's CPUs are divided among several judges.

As Linux tells it in /sys. Knows nothing of GPUs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")

Core = tuple[int, int]
"""Package (socket) and number of a physical core in it."""


def divide_cpus(
    cpus: Collection[int], parts: int, cores: Mapping[int, Core]
) -> tuple[frozenset[int], ...]:
    """`parts` sets of CPUs, as equal as can be.

    The threads of a physical core stay together where there are enough cores, and a part's cores
    are neighbours. With fewer CPUs than parts, parts share.

    Args:
        cpus: those that may be used; at least one.
        parts: at least one.
        cores: physical core of each CPU; one that is absent is a core of its own.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(cpus):
        groups.setdefault(cores.get(cpu, (cpu,)), []).append(cpu)
    units = [groups[key] for key in sorted(groups)]
    if len(units) < parts:
        units = [[cpu] for unit in units for cpu in unit]
    if len(units) < parts:
        return tuple(frozenset(units[i % len(units)]) for i in range(parts))
    bounds = [round(i * len(units) / parts) for i in range(parts + 1)]
    return tuple(
        frozenset(cpu for unit in units[low:high] for cpu in unit)
        for low, high in itertools.pairwise(bounds)
    )


def own_cpus() -> tuple[int, ...]:
    """Those that this thread, and what it starts, may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def physical_cores(cpus: Collection[int], root: Path = _CPUS) -> dict[int, Core]:
    """The physical core of each CPU; those of which the kernel says nothing are left out."""
    found = {}
    for cpu in cpus:
        topology = root / f"cpu{cpu}" / "topology"
        try:
            package = int((topology / "physical_package_id").read_text())
            found[cpu] = (package, int((topology / "core_id").read_text()))
        except (OSError, ValueError):
            continue
    return found
