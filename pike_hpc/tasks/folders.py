"""The suites below a tasks root: folders that hold numbered task files (a checkout's levels).

Looks at names only, reads no file. Links are followed, and a folder with several names is found
once, under its own if it has one here. Hidden and private folders (`.git`, `__pycache__`) are
passed over.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.records import UsageError
from pike_hpc.tasks.suite import NUMBERED, is_task_name

MAX_DEPTH = 4
"""How far below a tasks root suites are looked for: KernelBench/level3 is 2, the same inside
another project's deps folder is 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The suites of a tasks root."""

    folders: Mapping[str, Path]
    """Name to folder, in the order of names, level10 after level2."""
    refused: tuple[tuple[Path, str], ...] = ()
    """Folders that cannot be read: (path, reason)."""


def find_suites(root: Path) -> Found:
    """The folders below the root, itself included, that hold numbered task files.

    A name that two folders have is told apart by the path in the root: `old/level3`. A root that
    holds none is a suite itself.

    Raises:
        UsageError: the root is no folder, or cannot be read.
    """
    root = root.expanduser()
    if root.is_file():
        raise UsageError(
            f"{root} is a file, and a folder of tasks is wanted",
            where="tasks root",
            fix=f"name its folder, {root.parent}; which of its tasks, the ids say",
        )
    if not root.is_dir():
        raise UsageError(f"no folder {root}", where="tasks root")
    found: list[Path] = []
    refused: list[tuple[Path, str]] = []
    for folder, entries in _walk(root, refused):
        if any(
            NUMBERED.fullmatch(e.name) and is_task_name(e.name) and _is_file(e) for e in entries
        ):
            found.append(folder)
    if any(path == root for path, _ in refused):
        raise UsageError(f"cannot read {root}: {refused[0][1]}", where="tasks root")
    own = folder_name(root)
    names = [own if path == root else path.name for path in found]
    folders: dict[str, Path] = {}
    for name, path in zip(names, found, strict=True):
        unique = name if path == root or names.count(name) == 1 else str(path.relative_to(root))
        folders[unique if unique not in folders else f"{own}/{unique}"] = path
    ordered = dict(sorted(folders.items(), key=lambda item: _natural(item[0])))
    return Found(folders=ordered or {own: root}, refused=tuple(refused))


def folder_name(folder: Path) -> str:
    """What a folder is called, "." and ".." included; links keep their own names."""
    plain = folder.name not in ("", "..")
    return (folder.name if plain else folder.resolve().name) or "tasks"


def _walk(
    root: Path, refused: list[tuple[Path, str]]
) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Folders and what is in them, shallow first, links last, no folder twice."""
    seen: set[str] = set()
    real, links = collections.deque([(root, 0)]), collections.deque[tuple[Path, int]]()
    while real or links:
        folder, depth = (real or links).popleft()
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            refused.append((folder, f"unreadable: {error.strerror}"))
            continue
        yield folder, entries
        for entry in entries:
            if depth < MAX_DEPTH and entry.name[0] not in "._" and _is_folder(entry):
                (links if entry.is_symlink() else real).append((Path(entry.path), depth + 1))


def _is_file(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # a loop of links
        return entry.is_file()
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_dir()
    return False


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers by value: level10 after level2."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
