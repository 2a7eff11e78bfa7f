"""RUN/archive.h5: the product of a run, made from its journal, and the only door to h5py.

Imports journal and records. Knows run.yaml as text only, and nothing of figures.
"""

from pike_hpc.archive.canonical import canonical, canonical_text
from pike_hpc.archive.elites import Elite, by_attempt, elites, standing
from pike_hpc.archive.export_csv import FlatTable, disarmed, export_csv, flat_tables
from pike_hpc.archive.export_pike import export_pike_layout
from pike_hpc.archive.losses import require_journal
from pike_hpc.archive.read import read
from pike_hpc.archive.rebuild import is_current, rebuild
from pike_hpc.archive.record import (
    QueryOutcome,
    QueryRecord,
    RunArchive,
    StampedDecline,
    StampedIdeas,
    StampedProposal,
    StampedResult,
    TaskRecord,
    TaskState,
)
from pike_hpc.archive.verify import verify

__all__ = [
    "Elite",
    "FlatTable",
    "QueryOutcome",
    "QueryRecord",
    "RunArchive",
    "StampedDecline",
    "StampedIdeas",
    "StampedProposal",
    "StampedResult",
    "TaskRecord",
    "TaskState",
    "by_attempt",
    "canonical",
    "canonical_text",
    "disarmed",
    "elites",
    "export_csv",
    "export_pike_layout",
    "flat_tables",
    "is_current",
    "read",
    "rebuild",
    "require_journal",
    "standing",
    "verify",
]
