"""What doctor finds out about a folder: locks, kind of file system, clock, room.

Locks are what differs most: a file system may refuse them, or grant them to two nodes at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pike_hpc.cli.check import Check
from pike_hpc.machine import mount_of, mount_table

MIN_FREE_GB, MIN_FREE_FILES = 5.0, 100_000
MAX_SKEW_S = 5.0
"""Leases are judged by counters and Slurm first: clocks that differ by more only mislead people."""

ENOTSUPP = 524
"""The kernel's own number, which should never reach a program and does."""

LOCK_ERRORS = {
    errno.ENOLCK: (
        "there are no locks to be had (errno 37): an NFS mount without its lock service",
        "ask for a mount with locks, or put paths.work on the parallel file system",
    ),
    errno.ENOSYS: (
        "locks are not implemented (errno 38): Lustre mounted without `flock`",
        "ask for the mount option flock, or put paths.work elsewhere",
    ),
    ENOTSUPP: (
        "locks are not supported (errno 524): a file system that a server forwards, as DVS does",
        "put paths.work on a file system that nodes mount themselves, such as scratch",
    ),
}
_GOES_ON = "a run goes on with claims by hard link, which are slower"

Lock = Callable[[int, int], None]


def lock_check(folder: Path, lock: Lock = fcntl.flock) -> Check:
    """Whether a file there is locked once and no more."""
    with tempfile.NamedTemporaryFile(prefix="pike-doctor-", dir=folder) as one:
        try:
            lock(one.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return lock_refused(error)
        with Path(one.name).open("rb") as two:
            try:
                lock(two.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Check("lock", "ok", f"flock excludes on this node, on {kind_of(folder)}")
    return Check("lock", "warn", f"flock excludes nobody on {kind_of(folder)}", _GOES_ON)


def lock_refused(error: OSError) -> Check:
    """What a lock's error means and what to do about it."""
    what, fix = LOCK_ERRORS.get(
        error.errno or 0, (str(error), "put paths.work on another file system")
    )
    return Check("lock", "warn", f"{what}; {_GOES_ON}", fix)


def lock_of_another(file: Path, lock: Lock = fcntl.flock) -> Check:
    """Whether a lock that somebody holds on another node is seen on this one."""
    with file.open("rb") as opened:
        try:
            lock(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Check("lock", "ok", f"a lock held elsewhere holds here, on {kind_of(file)}")
        except OSError as error:
            return lock_refused(error)
    return Check(
        "lock",
        "warn",
        f"a lock held elsewhere does not hold here (as with localflock), on {kind_of(file)}",
        f"nothing to do: {_GOES_ON}. Never trust other programs' locks there",
    )


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
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_lfs_quota(done.stdout)


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
