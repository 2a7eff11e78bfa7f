"""Where flock keeps out processes of other machines too, as far as a mount tells.

One table for all locks. Whether flock works at all is for a probe to find out.
"""

from __future__ import annotations

import re

from pike_hpc.machine.mounts import Mount

_ONE_HOST = re.compile(r"(9p|afs|beegfs|cifs|dvs|fuse|smb)")
"""How the kinds begin whose clients may keep flock to themselves, by options that no mount shows:
FUSE and 9p where the server's program has no locks, DVS where it forwards none, BeeGFS as it comes
(tuneUseGlobalFileLocks=false). Not CephFS: its kernel client asks the metadata server
(fs/ceph/locks.c of Linux)."""

_NFS_LOCAL = frozenset({"nolock", "local_lock=flock", "local_lock=all"})
"""See nfs(5)."""


def flock_reaches_all(mount: Mount) -> bool:
    """Whether flock excludes on every machine that mounts it."""
    if mount.kind == "lustre":
        return "flock" in mount.options
    if mount.kind.startswith("nfs"):
        return not mount.options & _NFS_LOCAL
    return _ONE_HOST.match(mount.kind) is None
