"""Opening an archive for reading: is it ours, whole, and of a version we know?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from pike_hpc.records import UsageError

FORMAT = "pike-hpc-run"
FORMAT_VERSION = 2
"""Raised when a reader of the old version would misread the file. N and N-1 are read.

1: no timings again: no /elites, and no column `retime` in /evaluations."""
READABLE = (1, 2)

FILE_NAME = "archive.h5"


@contextmanager
def open_archive(path: Path) -> Iterator[Any]:
    """The open HDF5 file, read-only, without locks. Raises UsageError when it is not readable.

    Errors of HDF5 while the file is being read count as damage too.
    """
    if not path.is_file():
        raise UsageError(
            "there is no archive" if not path.exists() else "an archive is a file",
            where=str(path),
            valid="the archive.h5 of a run folder",
            fix=rebuild_hint(path),
        )
    try:
        with h5py.File(path, "r", locking=False) as file:
            _check(file, path)
            yield file
    except PermissionError:
        raise UsageError(
            "the archive may not be read", where=str(path), fix="ask its owner for read access"
        ) from None
    except (OSError, RuntimeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, why: str) -> UsageError:
    """The message for a file that is truncated, altered, or something else altogether."""
    reason = " ".join(why.split())[:200]
    return UsageError(
        f"this is no sound archive: {reason}",
        where=str(path),
        valid=f"an HDF5 file of format {FORMAT}, version {FORMAT_VERSION}",
        fix=rebuild_hint(path),
    )


def rebuild_hint(path: Path) -> str:
    """What to type; archives are made from the journal beside them."""
    return f"pike-hpc archive rebuild {path.parent}"


def _check(file: Any, path: Path) -> None:
    found = file.attrs.get("format")
    if found != FORMAT:
        raise UsageError(
            "this HDF5 file was not written by pike-hpc",
            where=str(path),
            valid=f"a file whose attribute 'format' is {FORMAT!r}",
            fix=rebuild_hint(path),
        )
    version = int(file.attrs.get("format_version", 0))
    if version not in READABLE:
        raise UsageError(
            f"the archive has format version {version}",
            where=str(path),
            valid=", ".join(str(v) for v in READABLE),
            fix=f"upgrade pike-hpc, or rebuild it with this version: {rebuild_hint(path)}",
        )
