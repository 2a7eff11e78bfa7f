"""How much memory this process may still take, cgroup limits counted."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can be taken before something is killed; None where nobody says.

    The smaller of what the kernel calls available and what the limit of our cgroup leaves: v2 as
    mounted here, v1 where that is what there is. A batch system sets the latter.

    Args:
        meminfo: /proc/meminfo, or a file like it.
        cgroup: the cgroup mount, or a folder like it.
    """
    found = [_available(meminfo)]
    for limit, usage in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    ):
        most, used = _number(limit), _number(usage)
        if most is not None and used is not None:
            found.append(max(0, most - used))
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kib) * 1024 for kib in found), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None  # no such cgroup, or "max"
