"""The FORMAT file: version of a mailbox and the ways that all its users must share.

Version 3 is written. 2 is read and used as it was made, with one folder of waiting requests, and 1
too, without batches and without known/; others are refused with the way out. The commit and the
lock are chosen by probe when the mailbox is made, on the file system it lies on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.mailbox.commit import COMMITS, choose_commit, read_committed
from pike_hpc.mailbox.files import Files, Gone, explained
from pike_hpc.mailbox.layout import FOLDERS, FORMAT_FILE
from pike_hpc.mailbox.locks import LOCKS, choose_lock
from pike_hpc.mailbox.shards import MAX_SHARDS, Shards
from pike_hpc.records import CodecError, UsageError, decode, to_json

VERSION = 3
_READ = (1, 2, 3)
_NAME = "pike-hpc mailbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What FORMAT says."""

    format: str = _NAME
    version: int = VERSION
    commit: str
    lock: str
    shards: int = 1


def open_format(
    root: Path, files: Files, nonce: str, *, commit: str | None, lock: str | None, shards: int
) -> Format:
    """The mailbox's format; the mailbox is made first when there is none.

    Raises UsageError for another version, for a file that is no mailbox's, and for a folder
    that can't be made or written.
    """
    path = root / FORMAT_FILE
    try:
        return _read(path, files)
    except Gone:
        pass
    if not 1 <= shards <= MAX_SHARDS:
        raise UsageError(
            f"a mailbox of {shards} shards", where="mailbox.shards", valid=f"1 to {MAX_SHARDS}"
        )
    for folder in (*(root / name for name in FOLDERS), *Shards(root / "new", shards).folders):
        _make(folder)
    form = Format(
        commit=commit or choose_commit(files, root / "tmp", nonce),
        lock=lock or choose_lock(root / "locks", nonce),
        shards=shards,
    )
    tmp = root / "tmp" / f"{nonce}-format"
    files.write_new(tmp, (to_json(form) + "\n").encode())
    # Many programs may open a new mailbox at once: the first one's choice stands.
    COMMITS[form.commit](files, tmp, path)
    files.sync(root / "new")
    files.sync(root)
    return _read(path, files)


def _make(folder: Path) -> None:
    try:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            "the mailbox's folder can't be made: a file is in the way",
            where=repr(str(folder)),
            fix="choose another run folder with --run",
        ) from None


def _read(path: Path, files: Files) -> Format:
    where, fix = repr(str(path)), "remove the mailbox folder; the journal refills it on resume"
    try:
        data = json.loads(read_committed(files, path))
        version = data["version"] if data["format"] == _NAME else None
    except (ValueError, TypeError, KeyError, OSError):
        version = None
    if not isinstance(version, int):
        raise UsageError("not a mailbox of pike-hpc", where=where, fix=fix)
    if version not in _READ:
        raise UsageError(
            f"this mailbox has version {version}; this pike-hpc knows versions 1 to 3",
            where=where,
            valid="versions 1 to 3",
            fix="use the pike-hpc that the run carries in its code folder, or: " + fix,
        )
    try:
        form = decode(Format, data)
    except CodecError as error:
        raise UsageError(f"not a readable mailbox: {error.what}", where=where, fix=fix) from None
    if form.commit not in COMMITS or form.lock not in LOCKS:
        valid = f"commit: {', '.join(COMMITS)}; lock: {', '.join(LOCKS)}"
        raise UsageError("unknown way to share the mailbox", where=where, valid=valid, fix=fix)
    if not 1 <= form.shards <= MAX_SHARDS:
        raise UsageError("not a readable mailbox: its number of shards", where=where, fix=fix)
    return form
