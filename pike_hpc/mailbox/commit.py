"""Put a file at a name that must not be taken yet, whoever tries at the same moment.

Three ways, tried in this order when a mailbox is created and then written into its FORMAT
file, because all who share a mailbox must use the same:

- `link`: link(2) fails with EEXIST. After a lost answer on NFS the inode tells. The only way by
  which several names of one batch can be committed.
- `renameat2`: RENAME_NOREPLACE, where there are no hard links.
- `directory`: rename a folder that holds the file; POSIX refuses to replace a folder that is
  not empty. Works wherever rename does, and unlike a marker made with O_EXCL it can't be left
  half done by a kill.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pike_hpc.mailbox.files import Files, Gone
from pike_hpc.records import PikeError, TryAgainLater

_INNER = "file"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

Commit = Callable[[Files, Path, Path], bool]
"""(files, source, target): True when source now lies at target; source is gone either way."""


def by_link(files: Files, source: Path, target: Path) -> bool:
    """Commit by a hard link."""
    won = link_new(files, source, target)
    remove_own(files, source)
    return won


def remove_own(files: Files, path: Path) -> None:
    """Remove a file of ours in tmp/ that has done its duty; what can't be removed is swept."""
    with suppress(Gone, TryAgainLater):
        files.unlink(path)


def link_new(files: Files, source: Path, target: Path) -> bool:
    """Give a file one more name; False when another file has that name."""
    try:
        files.link(source, target)
    except FileExistsError:
        # A repeated NFS call finds its own first try.
        return files.same(source, target)
    except Gone:
        raise _vanished(source) from None
    return True


def by_renameat2(files: Files, source: Path, target: Path) -> bool:
    """Commit by renameat2 with RENAME_NOREPLACE."""
    try:
        files.rename_new(source, target)
    except FileExistsError:
        remove_own(files, source)
        return False
    except Gone:
        raise _vanished(source) from None
    return True


def by_directory(files: Files, source: Path, target: Path) -> bool:
    """Commit by renaming a folder with the file in it; `read_committed` looks inside."""
    folder = source.with_name(source.name + ".d")
    files.mkdir(folder)
    try:
        files.rename(source, folder / _INNER)
        files.rename(folder, target)
    except Gone:
        raise _vanished(source) from None
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        _remove_folder(files, folder)
        return False
    return True


def _vanished(source: Path) -> TryAgainLater:
    return TryAgainLater(
        "a file of our own in the mailbox's tmp/ is gone: it lay there for an hour, or the answer "
        "to a step that was done got lost",
        where=repr(str(source)),
    )


COMMITS: Mapping[str, Commit] = {
    "link": by_link,
    "renameat2": by_renameat2,
    "directory": by_directory,
}


def read_committed(files: Files, target: Path) -> bytes:
    """The bytes committed at `target`. Raises Gone."""
    try:
        return files.read(target)
    except IsADirectoryError:
        return files.read(target / _INNER)


def remove_committed(files: Files, target: Path, aside: Path) -> None:
    """Take the commit back; `aside` is a free name of the caller's own. Raises Gone."""
    try:
        files.unlink(target)
    except IsADirectoryError:
        # Renamed first: a folder emptied in place could be replaced by a rival's commit.
        files.rename(target, aside)
        remove_any(files, aside)


def remove_any(files: Files, path: Path) -> None:
    """Remove a file, or a folder as `by_directory` makes it."""
    try:
        files.unlink(path)
    except Gone:
        return
    except IsADirectoryError:
        _remove_folder(files, path)


def choose_commit(files: Files, folder: Path, nonce: str) -> str:
    """The first way that works in `folder`: the first commit stands, the second is refused."""
    for name, commit in COMMITS.items():
        target = folder / f"{nonce}-{name}"
        sources = [folder / f"{nonce}-{name}-{i}" for i in range(2)]
        try:
            for i, source in enumerate(sources):
                files.write_new(source, b"%d" % i)
            first, second = (commit(files, source, target) for source in sources)
            if first and not second and read_committed(files, target) == b"0":
                remove_committed(files, target, sources[0])
                return name
        except TryAgainLater:
            raise
        except (OSError, Gone, PikeError):
            continue
    raise PikeError(
        "this file system can neither link nor rename without replacing",
        where=repr(str(folder)),
        fix="choose another run folder with --run",
    )


def _remove_folder(files: Files, folder: Path) -> None:
    with suppress(Gone):
        files.unlink(folder / _INNER)
    files.rmdir(folder)
