"""What this machine says: processes, signals, mounts, files, memory, CPU cores, its programs.

Standard library only. Knows nothing of runs: journal, mailbox and their locks ask it.
"""

from pike_hpc.machine.ask import Answer, ask, buried, end_group
from pike_hpc.machine.cores import divide_cpus, own_cpus, physical_cores
from pike_hpc.machine.failures import FULL, OUTAGE
from pike_hpc.machine.flock import flock_reaches_all
from pike_hpc.machine.folder import remove_tree, sync_folder
from pike_hpc.machine.memory import available_memory_bytes
from pike_hpc.machine.mounts import MOUNT_TABLE, Mount, mount_of, mount_table
from pike_hpc.machine.process import (
    began_at,
    below,
    boot_id,
    is_that,
    pid_namespace,
    runs,
    start_ticks,
    start_token,
)
from pike_hpc.machine.stop import Stop, stop_on_signals

__all__ = [
    "FULL",
    "MOUNT_TABLE",
    "OUTAGE",
    "Answer",
    "Mount",
    "Stop",
    "ask",
    "available_memory_bytes",
    "began_at",
    "below",
    "boot_id",
    "buried",
    "divide_cpus",
    "end_group",
    "flock_reaches_all",
    "is_that",
    "mount_of",
    "mount_table",
    "own_cpus",
    "physical_cores",
    "pid_namespace",
    "remove_tree",
    "runs",
    "start_ticks",
    "start_token",
    "stop_on_signals",
    "sync_folder",
]
