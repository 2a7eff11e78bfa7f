"""What this machine's kernel says: processes, signals, mounts, files, free memory, CPU cores.

Standard library only. Knows nothing of runs: journal, mailbox and their locks ask it.
"""

from pike_hpc.machine.cores import divide_cpus, physical_cores
from pike_hpc.machine.folder import sync_folder
from pike_hpc.machine.memory import available_memory_bytes
from pike_hpc.machine.mounts import MOUNT_TABLE, Mount, mount_of, mount_table
from pike_hpc.machine.process import boot_id, pid_namespace, runs, start_ticks
from pike_hpc.machine.stop import Stop, stop_on_signals

__all__ = [
    "MOUNT_TABLE",
    "Mount",
    "Stop",
    "available_memory_bytes",
    "boot_id",
    "divide_cpus",
    "mount_of",
    "mount_table",
    "physical_cores",
    "pid_namespace",
    "runs",
    "start_ticks",
    "stop_on_signals",
    "sync_folder",
]
