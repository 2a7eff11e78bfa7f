"""The record of a run: what happened in each task, in order, on disk before anyone acts on it.

Append-only segments of checksummed JSON lines under RUN/journal. Imports records and, for its
locks, filelock. Does not know what a search makes of the events.
"""

from pike_hpc.journal.controllers import controller_of
from pike_hpc.journal.disk import Disk, OsDisk, explain, write_all
from pike_hpc.journal.history import (
    History,
    journal_digest,
    read_history,
    read_task,
    task_slugs,
    watermark,
)
from pike_hpc.journal.holder import Holder
from pike_hpc.journal.line import Place, Stamped
from pike_hpc.journal.lock import Held, LockKind, WriterLock, choose_lock, held_for_s
from pike_hpc.journal.segment import SegmentName, task_slug
from pike_hpc.journal.task_journal import TaskJournal

__all__ = [
    "Disk",
    "Held",
    "History",
    "Holder",
    "LockKind",
    "OsDisk",
    "Place",
    "SegmentName",
    "Stamped",
    "TaskJournal",
    "WriterLock",
    "choose_lock",
    "controller_of",
    "explain",
    "held_for_s",
    "journal_digest",
    "read_history",
    "read_task",
    "task_slug",
    "task_slugs",
    "watermark",
    "write_all",
]
