"""The mount table: on which file system a folder lies, and how it is mounted; see proc(5).

Knows no policy: what may be done on a kind of file system is for whoever asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How the table writes spaces, tabs, line feeds and backslashes in paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system."""

    kind: str = ""
    """As the kernel calls it, such as ext4, nfs4, lustre, fuse.sshfs; empty: unknown."""
    options: frozenset[str] = frozenset()
    """Those of the mount and those of the file system."""


def mount_table(path: Path = MOUNT_TABLE) -> str:
    """The text of the table; empty where there is none to read."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def mount_of(folder: Path, table: str) -> Mount:
    """The deepest mount above a resolved folder; an unknown one where the table names none."""
    deepest, found, inside = -1, Mount(), f"{folder}/"
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(kinds) < 3:
            continue
        point = _OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[4]).rstrip("/") + "/"
        # Of two mounts at one point the later line lies on top.
        if len(point) >= deepest and inside.startswith(point):
            options = frozenset(fields[5].split(",") + kinds[2].split(","))
            deepest, found = len(point), Mount(kind=kinds[0], options=options)
    return found
