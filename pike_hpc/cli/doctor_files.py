"""What doctor finds out about a folder: kind of file system, clock, room."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from pike_hpc.cli.check import Check
from pike_hpc.machine import ask, mount_of, mount_table

MIN_FREE_GB, MIN_FREE_FILES = 5.0, 100_000
MAX_SKEW_S = 5.0
"""Leases are judged by counters and Slurm first: clocks that differ by more only mislead people."""


def kind_of(path: Path) -> str:
    """The file system's kind, with the mount's word on locks where it has one."""
    mount = mount_of(path.resolve(), mount_table())
    words = sorted(mount.options & {"flock", "localflock", "noflock", "nolock"})
    return " ".join((mount.kind or "an unknown file system", *words))


def clock_check(folder: Path) -> Check:
    """This machine's clock against that of the file system's server."""
    with tempfile.NamedTemporaryFile(prefix="pike-doctor-", dir=folder) as file:
        before = time.time()
        os.utime(file.fileno())
        stamp, after = os.fstat(file.fileno()).st_mtime, time.time()
    return skew_check(stamp, before, after, "the file system's clock")


def skew_check(told: float, before: float, after: float, whose: str) -> Check:
    """A clock that was read between two readings of ours."""
    # File systems' stamps are those of a kernel's tick.
    ahead = max(told - after, 0.0) - max(before - told - 0.02, 0.0)
    detail = f"{whose} is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    if abs(ahead) < 0.1:
        detail = f"{whose} agrees with ours"
    state = "ok" if abs(ahead) <= MAX_SKEW_S else "warn"
    return Check("clock", state, detail, "tell the site that a node's clock is off (NTP)")


def room_check(folder: Path) -> Check:
    """Bytes and files that may still be written: by quota where it is told, else on the disk."""
    free_gb = shutil.disk_usage(folder).free / 1e9
    files = os.statvfs(folder).f_favail or None
    told = f"{free_gb:.0f} GB free" + (f", {files:,} files" if files else "")
    quota = lustre_quota(folder)
    if quota is not None:
        left_gb, left_files = quota
        free_gb = min(free_gb, left_gb)
        files = min(left_files, files) if files else left_files
        told = f"quota leaves {left_gb:.0f} GB and {left_files:,} files"
    low = free_gb < MIN_FREE_GB or (files is not None and files < MIN_FREE_FILES)
    fix = f"keep {MIN_FREE_GB:.0f} GB and {MIN_FREE_FILES:,} files free: delete finished runs"
    return Check("quota", "warn" if low else "ok", told, fix)


def lustre_quota(folder: Path) -> tuple[float, int] | None:
    """(GB, files) that the user's quota leaves there; None where there is none or nobody tells."""
    if mount_of(folder.resolve(), mount_table()).kind != "lustre" or not shutil.which("lfs"):
        return None
    argv = ["lfs", "quota", "-q", "-u", str(os.getuid()), str(folder)]
    return read_lfs_quota(ask(argv, 60).stdout)


def read_lfs_quota(said: str) -> tuple[float, int] | None:
    """(GB, files) left, from one line of lfs: path, KB, soft, hard, grace, files, soft, hard, …."""
    words = [word.rstrip("*") for word in said.split()]
    if len(words) < 9 or not all(words[i].isdecimal() for i in (1, 2, 3, 5, 6, 7)):
        return None
    kilobytes, soft_kb, hard_kb, files, soft, hard = (int(words[i]) for i in (1, 2, 3, 5, 6, 7))
    limit_kb, limit = soft_kb or hard_kb, soft or hard
    if not (limit_kb or limit):
        return None
    left_gb = (limit_kb - kilobytes) * 1024 / 1e9 if limit_kb else float("inf")
    return left_gb, limit - files if limit else 10**9
