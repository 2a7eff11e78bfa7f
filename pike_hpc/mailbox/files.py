"""The few operations on files that a mailbox is made of, each one step that a kill may end at.

Errors have three meanings here: `Gone` (it isn't there; NFS says ESTALE for the same thing seen
from another client), UsageError (not allowed), and TryAgainLater for a full disk, for ESTALE of a
name that is there, and for whatever else a file system may say: what is not known to last must not
cost a verdict. What tells that a name is taken or no file's passes, and of a move that it isn't
supported: their callers decide by it. Tests pass a subclass that dies at the n-th step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pike_hpc.machine import FULL, sync_folder
from pike_hpc.records import PikeError, TryAgainLater, UsageError

_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_FILE = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}
    | {errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG}
)
"""Something else lies at a name than the file that it would be of."""
_UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, 524}
)
"""A file system that can't link, or not rename without replacing; 524 is the kernel's ENOTSUPP."""
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_READ_BYTES = 1 << 16


class Gone(Exception):
    """The file is not there (any more), or this client's handle on it is stale."""


class explained:  # noqa: N801  # used as a statement's word; a generator costs four times as much
    """Give an OSError its meaning for a mailbox."""

    __slots__ = ("path",)
    passes = _NO_FILE
    """What the callers decide by."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Raises what the error means."""
        if isinstance(error, OSError) and error.errno not in self.passes:
            raise _meaning(error, self.path) from error


def _meaning(error: OSError, path: Path) -> Exception:
    code, text, where = error.errno, error.strerror or str(error), repr(str(path))
    if code in (errno.ENOENT, errno.ESTALE):
        return Gone(str(path))
    if code in FULL:
        return TryAgainLater(
            f"no space left for the mailbox ({text})",
            where=where,
            fix="free space or quota there; workers and agents go on by themselves",
        )
    if code in _REFUSED:
        return UsageError(
            f"the mailbox may not be used ({text})",
            where=where,
            fix="make the run folder writable for this user, or choose another with --run",
        )
    return TryAgainLater(f"the mailbox's file system does not answer ({text})", where=where)


class explained_move(explained):  # noqa: N801  # as above
    """`explained` for what gives or takes a name: Gone only when the path really isn't there."""

    __slots__ = ()
    passes = _NO_FILE | _UNSUPPORTED

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Raises what the error means."""
        stale = isinstance(error, OSError) and error.errno == errno.ESTALE
        if stale and os.path.lexists(self.path):
            said = OSError(errno.EAGAIN, os.strerror(errno.ESTALE))
            raise _meaning(said, self.path) from error
        super().__exit__(kind, error, trace)


@contextmanager
def _folder_stands(folder: Path) -> Iterator[None]:
    try:
        yield
    except Gone:
        raise PikeError(
            "the mailbox is gone: its folder was removed while it was in use",
            where=repr(str(folder)),
            fix="submit the run again; its journal is not part of the mailbox",
        ) from None


class Files:
    """The operations. Stateless."""

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Create `path` with `data`, on disk if durable. What can't be completed is removed."""
        with _folder_stands(path.parent), explained(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                try:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(fd, view) :]
                    if durable:
                        os.fsync(fd)
                finally:
                    # NFS reports a full quota as late as here.
                    os.close(fd)
            except OSError:
                with suppress(OSError):
                    path.unlink()
                raise

    def sync(self, folder: Path) -> None:
        """The names in `folder` reach the disk."""
        with explained(folder):
            sync_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically, replacing a file at `target`."""
        with explained_move(source):
            os.rename(source, target)  # noqa: PTH104  # Path.rename makes a Path of it, for nothing

    def rename_new(self, source: Path, target: Path) -> None:
        """Atomically; FileExistsError when `target` exists, OSError where unsupported."""
        with explained_move(source):
            call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
            if call is None:
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            old, new = os.fsencode(source), os.fsencode(target)
            if call(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(target))

    def link(self, source: Path, target: Path) -> None:
        """A second name; FileExistsError when `target` exists."""
        with explained_move(source):
            os.link(source, target)

    def same(self, path: Path, other: Path) -> bool:
        """Whether both are names of one file."""
        with explained(path):
            return path.samefile(other)

    def unlink(self, path: Path) -> None:
        """Remove a file's name. IsADirectoryError for a folder."""
        with explained_move(path):
            path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make one folder; FileExistsError when it exists."""
        with explained(path):
            path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        with explained(path):
            path.rmdir()

    def read(self, path: Path) -> bytes:
        """All bytes. IsADirectoryError for a folder."""
        with explained(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Without the questions about the file that `open` asks its server.
                data = bytearray()
                while part := os.read(fd, _READ_BYTES):
                    data += part
                return bytes(data)
            finally:
                os.close(fd)

    def exists(self, path: Path) -> bool:
        """Whether the name is there, as far as this client can see.

        Unlike `os.path.lexists`, which takes a server that doesn't answer for a name that isn't.
        """
        try:
            with explained(path):
                os.lstat(path)
        except (Gone, NotADirectoryError):
            return False
        return True

    def names(self, folder: Path) -> list[str]:
        """Sorted names, without hidden ones: NFS leaves `.nfsXXXX` for unlinked open files."""
        with _folder_stands(folder), explained(folder):
            return sorted(n for n in os.listdir(folder) if not n.startswith("."))  # noqa: PTH208

    def modified_s(self, path: Path) -> float:
        """Time of last change in Unix seconds of the file server."""
        with explained(path):
            return path.stat().st_mtime

    def server_now_s(self, probe: Path) -> float:
        """The file server's own time, read off a file touched for it; ours when that fails."""
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            with suppress(OSError):
                probe.unlink()
