"""Folders: their names on stable storage, and the end of one of any depth."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from contextlib import suppress
from pathlib import Path

_NAMED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sync_folder(folder: Path) -> None:
    """Return once the names in the folder are on stable storage: fsync of a file keeps none.

    Raises OSError.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network and FUSE file systems can't sync a folder and order names by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def remove_tree(folder: Path) -> bool:
    """Delete a folder and all in it, as far as we may; whether it is gone. Raises nothing.

    However deep: who may write there can make folders that `shutil.rmtree` ends at with a
    RecursionError, or has no descriptors for, and whose paths are longer than any call takes.
    Here each folder is moved to the top before it is looked into. Links are not followed.
    """
    try:
        top = os.open(folder, _LOOK)
    except OSError:
        return not os.path.lexists(folder)
    try:
        with suppress(OSError):
            os.fchmod(top, 0o700)
        mark, waiting = secrets.token_hex(8), _empty(top, None, "")
        for number in itertools.count():
            if not waiting:
                break
            name = waiting.pop()
            with suppress(OSError):
                inside = os.open(name, _LOOK, dir_fd=top)
                try:
                    waiting += _empty(inside, top, f"{mark}-{number}-")
                finally:
                    os.close(inside)
            with suppress(OSError):
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        folder.rmdir()
    return not os.path.lexists(folder)


def _empty(inside: int, top: int | None, prefix: str) -> list[str]:
    """Delete what is in an open folder; names of its folders, which move to `top`, if any.

    Raises nothing: what a failing file system does not list stays.
    """
    entries: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(inside) as listing:
        entries.extend(listing)
    found = []
    for number, entry in enumerate(entries):
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=inside)
                continue
            with suppress(OSError):
                _let_us_in(entry.name, inside)
            name = entry.name
            if top is not None:
                name = f"{prefix}{number}"
                os.rename(entry.name, name, src_dir_fd=inside, dst_dir_fd=top)
            found.append(name)
    return found


def _let_us_in(name: str, inside: int) -> None:
    """Give ourselves all rights to a folder, one that we can't read too. Raises OSError.

    chmod by its name would follow a link that somebody puts there meanwhile.
    """
    folder = os.open(name, _NAMED, dir_fd=inside)
    try:
        # fchmod takes no such descriptor.
        Path(f"/proc/self/fd/{folder}").chmod(0o700)
    finally:
        os.close(folder)
