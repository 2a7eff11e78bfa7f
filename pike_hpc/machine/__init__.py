"""What this machine's kernel says: which process runs, what is mounted, what is on disk.

Standard library only. Knows nothing of runs: journal, mailbox and their locks ask it.
"""

from pike_hpc.machine.folder import sync_folder
from pike_hpc.machine.mounts import MOUNT_TABLE, Mount, mount_of, mount_table
from pike_hpc.machine.process import boot_id, pid_namespace, runs, start_ticks

__all__ = [
    "MOUNT_TABLE",
    "Mount",
    "boot_id",
    "mount_of",
    "mount_table",
    "pid_namespace",
    "runs",
    "start_ticks",
    "sync_folder",
]
