"""At most one writer: a lock that nobody can break under a living holder.

Two kinds. `FLOCK` is the kernel's: a kill -9 releases it at once. It is chosen where a probe
shows that it excludes and the mount does not keep it local to this node. `CLAIMS` (filelock's
StrictSoftFileLock) works where links are atomic, survives its holder's death, and is then taken
over only with proof that the holder ended on this very node; otherwise the message says how a
person clears it. Never a lock that expires by age.

The two don't exclude each other, and a login node may have the one where a compute node has the
other: all locks of a folder are of the kind that the first of them was.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from filelock import BaseFileLock, SoftFileLockProtocolError, StrictSoftFileLock, UnixFileLock
from filelock import Timeout as LockTimeout

from pike_hpc.journal.disk import Disk, OsDisk, explain, write_all
from pike_hpc.journal.holder import (
    Holder,
    holder_file,
    holder_of,
    read_holder,
    this_process,
    write_holder,
)
from pike_hpc.machine import FULL, OUTAGE, flock_reaches_all, mount_of, mount_table
from pike_hpc.records import TryAgainLater, UsageError

_NOTE = ".kind"
"""A file in the folder that holds the kind's name."""


class LockKind(enum.Enum):
    """How exclusion is had."""

    FLOCK = "flock"
    CLAIMS = "claims"


class Held(TryAgainLater):
    """Somebody else has the lock, or may have: it is none of the file system's failures."""


class WriterLock:
    """A held lock. Made by `take`, given back by `release` or the end of a with block."""

    def __init__(self, lock: BaseFileLock, sidecar: Path) -> None:
        self._lock, self._sidecar = lock, sidecar

    @classmethod
    def take(
        cls,
        path: Path,
        *,
        writer: str,
        clock: Callable[[], float],
        kind: LockKind | None = None,
        wait_s: float = 0.0,
    ) -> WriterLock:
        """The lock on path, its folder made where missing.

        Waits at most wait_s. Without a kind it is that of the folder's other locks, the first
        time what the file system here allows. Raises Held naming the holder, TryAgainLater where
        the file system fails, UsageError where this node can't take locks of that kind.
        """
        sidecar = holder_file(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _make(path, kind or agreed(path.parent, choose_lock(path.parent, mount_table())))
            _acquire(lock, sidecar, wait_s)
        except LockTimeout:
            raise _held(path, read_holder(sidecar)) from None
        except SoftFileLockProtocolError as error:
            raise Held(
                f"the lock cannot be understood: {error.reason}",
                where=str(path),
                fix=f"when no controller of this run is alive: rm -r '{path}'*",
            ) from None
        except OSError as error:
            raise explain(error, path, "take the lock") from None
        try:
            write_holder(sidecar, this_process(writer, clock()))
        except OSError as error:
            lock.release()
            raise explain(error, sidecar, "name the lock's holder") from None
        return cls(lock, sidecar)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._sidecar.unlink()
            self._lock.release()

    def __enter__(self) -> WriterLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def agreed(folder: Path, here: LockKind, disk: Disk | None = None) -> LockKind:
    """The kind of all locks in a folder, written down by whoever takes the first.

    Args:
        folder: of the locks.
        here: the kind that this node would choose. Claims work on any node, flock on some.
        disk: what it is written with; the operating system's without.

    Raises:
        UsageError: the others take flock, and this node can't.
    """
    noted = folder / _NOTE
    if not noted.exists() and not _write_once(noted, here.value, disk or OsDisk()):
        return here
    said = noted.read_text("utf-8", "replace").strip()
    if said not in {kind.value for kind in LockKind}:
        raise UsageError(
            f"no kind of lock is called {said[:40]!r}", where=str(noted), valid=here.value
        )
    kind = LockKind(said)
    if kind is LockKind.FLOCK and here is LockKind.CLAIMS:
        raise UsageError(
            "this node can't keep the others out: they take flock, which does not exclude here",
            where=str(noted),
            fix=f"run it where the others run; or, when no controller of this run is alive: "
            f"echo {here.value} > '{noted}', and all take claims from then on",
        )
    return kind


def _write_once(path: Path, text: str, disk: Disk) -> bool:
    """Whether the file is there now, whole, by whomever. Not so on a file system without links."""
    fresh = path.with_name(f"{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    fd = disk.create(fresh)
    try:
        try:
            write_all(disk, fd, text.encode(), 0)
            # Before it has its name: other clients of NFS, and all after a power cut, might find
            # the name without the text.
            disk.sync(fd)
        finally:
            disk.close(fd)
        return _linked(fresh, path)
    finally:
        disk.unlink(fresh)


def _linked(fresh: Path, path: Path) -> bool:
    try:
        os.link(fresh, path)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno in FULL | OUTAGE:
            raise
        return False
    return True


def choose_lock(folder: Path, mounts: str) -> LockKind:
    """FLOCK where it excludes on every node that mounts the folder, as far as can be known.

    mounts is the text of /proc/self/mountinfo. Raises OSError when folder takes no file.
    """
    reaches = flock_reaches_all(mount_of(folder.resolve(), mounts))
    return LockKind.FLOCK if reaches and _flock_excludes(folder) else LockKind.CLAIMS


def _flock_excludes(folder: Path) -> bool:
    """Whether a second descriptor is kept out while a first one holds the lock."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as first:
        second = os.open(first.name, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(second)
    return False


def _make(path: Path, kind: LockKind) -> BaseFileLock:
    if kind is LockKind.FLOCK:
        return UnixFileLock(str(path), fallback_to_soft=False, thread_local=False)
    return StrictSoftFileLock(str(path), thread_local=False)


def _acquire(lock: BaseFileLock, sidecar: Path, wait_s: float) -> None:
    try:
        lock.acquire(timeout=0)
    except LockTimeout:
        holder = read_holder(sidecar)
        if isinstance(lock, StrictSoftFileLock) and holder is not None:
            _clear_ended(lock, holder)
        lock.acquire(timeout=wait_s)


def _clear_ended(lock: StrictSoftFileLock, holder: Holder) -> None:
    """Remove the claims of a holder that has provably ended, and no others."""
    for claim in lock.claims:
        if claim.pid == holder.pid and holder.has_ended():
            with contextlib.suppress(FileNotFoundError):
                lock.force_break(claim.name)


def held_for_s(path: Path, now: float) -> float:
    """For how long a lock that is held has been, as far as can be seen.

    A claim outlives its holder, who may have left no name; flock doesn't, so that a name of one who
    has ended is of somebody before.
    """
    holder = holder_of(path)
    if holder is not None:
        return 0.0 if holder.has_ended() else now - holder.since
    made = [now]
    for claim in path.with_name(f"{path.name}.filelock").glob("claims/*"):
        with contextlib.suppress(FileNotFoundError):
            made.append(claim.stat().st_mtime)
    return now - min(made)


def _held(path: Path, holder: Holder | None) -> Held:
    who = holder.describe() if holder else "a process that left no name"
    return Held(
        f"locked by {who}",
        where=str(path),
        fix="wait for it to end, or stop it, then give the same command again",
    )
