"""The queue between agents and workers: requests in, results out, nothing lost, none twice."""

from pike_hpc.machine import start_token
from pike_hpc.mailbox.file_mailbox import FileMailbox
from pike_hpc.mailbox.liveness import alive_here, host_name
from pike_hpc.mailbox.memory_mailbox import MemoryMailbox
from pike_hpc.mailbox.message import (
    MAX_ATTEMPTS,
    STARTING,
    Claim,
    QueueCounts,
    SeenWorker,
    WorkerBeat,
)
from pike_hpc.mailbox.protocol import JobsRun, Liveness, Mailbox, Watch

__all__ = [
    "MAX_ATTEMPTS",
    "STARTING",
    "Claim",
    "FileMailbox",
    "JobsRun",
    "Liveness",
    "Mailbox",
    "MemoryMailbox",
    "QueueCounts",
    "SeenWorker",
    "Watch",
    "WorkerBeat",
    "alive_here",
    "host_name",
    "start_token",
]
