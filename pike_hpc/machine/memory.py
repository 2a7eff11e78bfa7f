"""How much memory this process may still take, limits of its cgroups counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


class _Names(NamedTuple):
    """Files of a cgroup, and the line of its memory.stat that counts files kept in memory."""

    most: str
    used: str
    cache: str


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def available_memory_bytes(
    meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP, own: Path = _OWN
) -> int | None:
    """Bytes that can be taken before something is killed; None where nobody says.

    The smallest of what the kernel calls available and what each limit leaves, of our cgroup and
    of those around it: a batch system sets them for the job. Files that were read lately count as
    used there until somebody wants their room; they are not counted here.

    Args:
        meminfo: /proc/meminfo, or a file like it.
        cgroup: the cgroup mount, or a folder like it.
        own: /proc/self/cgroup, or a file like it.
    """
    found = [_available(meminfo)]
    found += [_left(folder, names) for folder, names in _groups(cgroup, own)]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _available(meminfo: Path) -> int | None:
    kib = _field(meminfo, "MemAvailable:")
    return None if kib is None else kib * 1024


def _groups(mount: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """Our cgroup and all around it, of version 2 and of version 1's memory controller."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    ours = {controllers: path for _, controllers, path in (s.split(":", 2) for s in lines)}
    for base, names, path in (
        (mount, _V2, ours.get("", "/")),
        (mount / "memory", _V1, ours.get("memory", "/")),
    ):
        folder = base / path.lstrip("/")  # seen from a container it may lie outside the mount
        for each in (folder, *folder.parents):
            if each.is_relative_to(base):
                yield each, names


def _left(folder: Path, names: _Names) -> int | None:
    most, used = _number(folder / names.most), _number(folder / names.used)
    if most is None or used is None:
        return None
    cache = _field(folder / "memory.stat", names.cache) or 0
    return max(0, most - max(0, used - cache))


def _field(path: Path, name: str) -> int | None:
    """The number after a name in a file of names and numbers."""
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(words[1]) for words in map(str.split, lines) if words[:1] == [name]), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None  # no such cgroup, or "max"
