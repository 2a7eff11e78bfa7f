"""Whether a folder lies on this machine's own disk or on one that machines share.

Decides how often it pays to look: a client of a shared file system sees for seconds what it has
cached, and every look is work for one server.
"""

from __future__ import annotations

from pathlib import Path

from pike_hpc.machine import MOUNT_TABLE, mount_of, mount_table

_OWN = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs"}
    | {"xfs", "zfs"}
)
"""File systems that one kernel owns. Every other, unknown ones included, counts as shared."""


def is_shared(folder: Path, mounts: Path = MOUNT_TABLE) -> bool:
    """Whether other machines may see the folder too, as far as this one's mounts tell."""
    return mount_of(folder.resolve(), mount_table(mounts)).kind not in _OWN
