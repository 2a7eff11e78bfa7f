"""From attacks that were stopped to an isolation level. Pure.

Contract: a level is reached when every attack of it and of all lower levels was stopped; an
attack that was not tried counts as not stopped. docs/isolation.md explains each attack.
"""

from __future__ import annotations

from collections.abc import Mapping

from pike_hpc.records import UsageError

LEVELS = ("L0", "L1", "L2", "L3", "L4")

STOPPED_AT: Mapping[str, tuple[str, ...]] = {
    "L1": ("judge_memory",),
    "L2": (
        "process_memory",
        "process_environment",
        "signal",
        "read_secret",
        "read_home",
        "write_private",
        "write_read_only",
    ),
    "L3": (
        "process_view",
        "network",
        "network_interfaces",
        "abstract_socket",
        "shared_memory",
        "write_public",
        "root_uid",
        "capabilities",
        "gain_privileges",
        "namespaces",
        "work_while_stopped",
    ),
    "L4": ("processes", "scratch", "memory_of_one", "memory_together", "memory_in_files"),
}
"""Attacks that must be stopped for a level, beyond those of the levels below it."""

ATTACKS = tuple(attack for attacks in STOPPED_AT.values() for attack in attacks)


def level(stopped: Mapping[str, bool]) -> str:
    """The highest level all of whose attacks were stopped."""
    reached = "L0"
    for name, attacks in STOPPED_AT.items():
        if not all(stopped.get(attack, False) for attack in attacks):
            break
        reached = name
    return reached


def meets(reached: str, minimum: str) -> bool:
    """Whether a level is at least another. Raises UsageError for what is no level."""
    for name in (reached, minimum):
        if name not in LEVELS:
            raise UsageError(f"{name!r} is no isolation level", valid=", ".join(LEVELS))
    return LEVELS.index(reached) >= LEVELS.index(minimum)
