"""Whether a control group was handed to us, for limits that hold for many processes together.

Contract: only reads. A group is ours when the process that looks was put, by whoever started it,
into a child called `pike-worker` of a cgroup v2 folder that we may write and whose children have
the controllers memory and pids. Being able to write a group is not enough: root can write those
of systemd and Slurm as well. docs/isolation.md says how to be put there.
"""

from __future__ import annotations

import os
from pathlib import Path

LEAF = "pike-worker"
_CONTROLLERS = {"memory", "pids"}


def handed_over(proc: Path = Path("/proc/self")) -> str:
    """The folder below which sandboxes may have groups of their own; empty where there is none."""
    try:
        own = _own_group(proc)
        if own is None or own.name != LEAF:
            return ""
        enabled = (own.parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return ""
    writable = all(os.access(p, os.W_OK) for p in (own.parent, own.parent / "cgroup.procs"))
    return str(own.parent) if writable and set(enabled) >= _CONTROLLERS else ""


def _own_group(proc: Path) -> Path | None:
    """The cgroup v2 folder of that process; None without such a hierarchy in sight."""
    lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    mounts = (proc / "mountinfo").read_text(encoding="utf-8").splitlines()
    for before, _, after in (line.partition(" - ") for line in mounts):
        root, point = before.split()[3:5]
        if inside is not None and after.split()[0] == "cgroup2":
            return Path(point) / Path(inside).relative_to(root)
    return None
