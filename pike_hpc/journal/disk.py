"""The few disk operations a journal and an archive depend on, as a door.

Everything that must survive a crash goes through a `Disk`, in the order in which it must become
durable. `OsDisk` is the real one; tests hand in disks that die, tear or fill up at a chosen step.
Knows nothing of events.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

from pike_hpc.machine import FULL, sync_folder
from pike_hpc.records import PikeError, TryAgainLater, UsageError


class Disk(Protocol):
    """What has to be ordered. Every operation raises OSError where the system does."""

    def create(self, path: Path) -> int:
        """A descriptor on a new empty file. FileExistsError when the name is taken."""
        ...

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write at offset; how many bytes were taken, perhaps fewer than given."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to size bytes."""
        ...

    def sync(self, fd: int) -> None:
        """Return once the file's bytes are on stable storage."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Return once the folder's names are on stable storage."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Give source the name target, in one step."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        ...

    def close(self, fd: int) -> None:
        """Close; on network file systems write errors may surface only here."""
        ...


class OsDisk:
    """The operating system's own."""

    def create(self, path: Path) -> int:
        """As in Disk."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """As in Disk."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """As in Disk."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """As in Disk."""
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """As in Disk."""
        sync_folder(folder)

    def replace(self, source: Path, target: Path) -> None:
        """As in Disk."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """As in Disk."""
        path.unlink()

    def close(self, fd: int) -> None:
        """As in Disk."""
        os.close(fd)


def write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write every byte of data at offset, or raise OSError."""
    view = memoryview(data)
    while view:
        taken = disk.write(fd, bytes(view), offset)
        if taken <= 0:
            raise OSError(errno.ENOSPC, "the file system takes no more bytes")
        view = view[taken:]
        offset += taken


def explain(error: OSError, path: Path, doing: str) -> PikeError:
    """The message a person needs for a failed disk operation; `doing` such as "write"."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return TryAgainLater(
            f"cannot {doing}: {reason}",
            where=str(path),
            fix="free space or raise the quota, then give the same command again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        return UsageError(
            f"cannot {doing}: {reason}",
            where=str(path),
            fix="choose a run folder that this user can write",
        )
    return TryAgainLater(
        f"cannot {doing}: {reason}",
        where=str(path),
        fix="check the file system, then give the same command again",
    )
