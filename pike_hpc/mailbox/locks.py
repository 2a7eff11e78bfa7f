"""Locks that no one can break under a live holder, chosen by what the file system really does.

A mailbox never depends on them: the rename of a message decides who has it. A lock spares
contention, so waiting for one is bounded and ends in going on without it. The kind is written
into the FORMAT file, because two kinds on one path exclude nothing.

- `flock`: filelock's UnixFileLock, never its silent fall-back to a breakable marker. The kernel
  releases it when the holder is killed. Local disks, GPFS, CephFS, Lustre mounted with `flock`.
- `claims`: filelock's StrictSoftFileLock, for NFS and wherever flock may not reach other machines.
  It outlives a killed holder; then everyone waits the bound and goes on.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import (
    BaseFileLock,
    SoftFileLockProtocolError,
    StrictSoftFileLock,
    Timeout,
    UnixFileLock,
)

from pike_hpc.machine import MOUNT_TABLE, flock_reaches_all, mount_of, mount_table
from pike_hpc.mailbox.files import explained

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, 524})
"""What a client says that knows no locks: 524, the kernel's own ENOTSUPP, where a server forwards
the file system, as DVS does."""


def _flock(path: Path) -> BaseFileLock:
    return UnixFileLock(path, fallback_to_soft=False, poll_interval=0.005)


def _claims(path: Path) -> BaseFileLock:
    return StrictSoftFileLock(path, poll_interval=0.02)


LOCKS: Mapping[str, Callable[[Path], BaseFileLock]] = {"flock": _flock, "claims": _claims}


@contextmanager
def held(kind: str, path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock; True when it is held, False when it could not be had within `wait_s`.

    Nor can it where this machine has no locks on that file system, or no hard links, of which
    `claims` is made, though the one had that made the mailbox: a compute node may see it by
    another way than a login node.
    """
    lock = LOCKS[kind](path)
    with explained(path):
        mine = acquired(lock, wait_s)
    try:
        yield mine
    finally:
        if mine:
            lock.release()


def acquired(lock: BaseFileLock, wait_s: float) -> bool:
    """Take the lock; False where it can't be had.

    Raises OSError for what is no matter of locks, as far as that is told: filelock says of claims
    only that they can't be made or understood.
    """
    try:
        lock.acquire(timeout=wait_s)
    except (Timeout, FileNotFoundError, NotImplementedError, SoftFileLockProtocolError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS | {errno.ESTALE}:
            raise
        return False
    return True


def choose_lock(folder: Path, nonce: str, mounts: Path = MOUNT_TABLE) -> str:
    """`flock` where the file system is coherent and a second holder is really refused."""
    if _coherent(folder, mounts) and _excludes("flock", folder / f"probe-{nonce}"):
        return "flock"
    return "claims"


def _excludes(kind: str, path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with held(kind, path, 0) as first, held(kind, path, 0) as second:
                return first and not second
        except (OSError, Warning):
            return False
        finally:
            path.unlink(missing_ok=True)


def _coherent(folder: Path, mounts: Path) -> bool:
    mount = mount_of(folder.resolve(), mount_table(mounts))
    # On NFS two flocks were seen to overlap. A journal takes it there, to be free after a kill; to
    # a mailbox, which doesn't depend on its locks, claims cost nothing.
    return flock_reaches_all(mount) and not mount.kind.startswith("nfs")
