"""A candidate's file as a user names it."""

from __future__ import annotations

from pathlib import Path

from pike_hpc.records import UsageError

_MAX_FILE_BYTES = 900_000
"""Leaves room for the task beside it in a request of at most a million bytes."""


def read_candidate(path: Path) -> str:
    """The candidate's text. Raises UsageError for a file that cannot be one."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UsageError(  # a pipe would never end, nor would /dev/zero
                "the candidate is no file",
                where=str(path),
                valid="a Python file that defines ModelNew (or Model)",
            )
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read the candidate: {error.strerror}",
            where=str(path),
            valid="a Python file that defines ModelNew (or Model)",
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(
            f"the candidate has {path.stat().st_size} bytes",
            where=str(path),
            valid=f"up to {_MAX_FILE_BYTES}",
        )
    try:
        return data.decode("utf-8-sig")  # editors on Windows put a BOM first; Python drops it too
    except UnicodeDecodeError as error:
        raise UsageError(f"the candidate is not UTF-8 text: {error}", where=str(path)) from None
