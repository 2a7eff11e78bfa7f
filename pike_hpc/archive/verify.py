"""Whether an archive is sound: every checksum, count and reference in it, by reading all of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pike_hpc.archive.blob_store import BlobReader
from pike_hpc.archive.body import ANSWER, BODY, LOG, SOURCE, STORES, text_store
from pike_hpc.archive.layout import open_archive
from pike_hpc.archive.tables import (
    CANDIDATES,
    ELITES,
    EVALUATIONS,
    EVENTS,
    PROPOSALS,
    QUERIES,
    TASKS,
    Columns,
)
from pike_hpc.archive.write import config_sha256
from pike_hpc.records import UsageError

_COLUMNS: dict[str, Columns] = {
    "tasks": TASKS,
    "events": EVENTS,
    "candidates": CANDIDATES,
    "proposals": PROPOSALS,
    "evaluations": EVALUATIONS,
    "elites": ELITES,
    "queries": QUERIES,
}
_ADDED_BY_2 = ("elites", "retime")
"""A table and a column of /evaluations."""
_DERIVED = {"proposals": "Proposed", "evaluations": "Evaluated", "queries": "QueryReserved"}
"""Table to the event type that each of its rows repeats."""

_REFERENCES = (
    # table, column, target table or blob store, may be -1
    ("events", "task", "tasks", False),
    ("events", "body", f"blobs/{BODY}", False),
    ("candidates", "task", "tasks", False),
    ("candidates", "source", f"blobs/{SOURCE}", False),
    ("proposals", "task", "tasks", False),
    ("proposals", "event", "events", False),
    ("proposals", "candidate", "candidates", False),
    ("evaluations", "task", "tasks", False),
    ("evaluations", "event", "events", False),
    ("evaluations", "candidate", "candidates", True),
    ("evaluations", "log", f"blobs/{LOG}", False),
    ("elites", "task", "tasks", False),
    ("elites", "candidate", "candidates", True),
    ("queries", "task", "tasks", False),
    ("queries", "event", "events", False),
    ("queries", "answer", f"blobs/{ANSWER}", True),
)


def verify(path: Path) -> tuple[str, ...]:
    """What is wrong with an archive, one line each; empty when it is sound.

    A file that can't even be read as an archive is one problem. Raises UsageError only when
    there is no file.
    """
    if not path.is_file():
        with open_archive(path):
            pass
    try:
        with open_archive(path) as file:
            return tuple(_problems(file))
    except UsageError as error:
        return (error.what,)


def _problems(file: Any) -> list[str]:
    expected = _columns(int(file.attrs["format_version"]))
    missing = [name for name in expected if name not in file]
    missing += [f"blobs/{store}" for store in STORES if f"blobs/{store}" not in file]
    if missing or "provenance/run_yaml" not in file:
        return [f"/{name} is missing" for name in missing or ["provenance/run_yaml"]]
    # Reading every row also has HDF5 check every chunk's fletcher32.
    tables = {name: file[name][()] for name in expected}
    blobs = {store: BlobReader(file[f"blobs/{store}"]) for store in STORES}
    problems = _column_problems(tables, expected)
    for store, reader in blobs.items():
        problems += reader.problems(store)
    if problems:
        return problems
    config = BlobReader(file["provenance/run_yaml"])
    if config.problems("run_yaml") or config_sha256(config.get(0)) != file.attrs["config_sha256"]:
        problems.append("/provenance/run_yaml does not match config_sha256")
    problems += _count_problems(file, tables)
    problems += _reference_problems(tables, blobs)
    problems += _text_problems(tables, blobs)
    return problems


def _columns(version: int) -> dict[str, Columns]:
    """The tables of a format version, and their columns."""
    if version >= 2:
        return _COLUMNS
    return {
        name: tuple(column for column in columns if column[0] not in _ADDED_BY_2)
        for name, columns in _COLUMNS.items()
        if name not in _ADDED_BY_2
    }


def _column_problems(tables: dict[str, Any], expected: dict[str, Columns]) -> list[str]:
    return [
        f"/{name} has columns {', '.join(tables[name].dtype.names or ())}"
        for name, columns in expected.items()
        if tables[name].dtype.names != tuple(column for column, _ in columns)
    ]


def _count_problems(file: Any, tables: dict[str, Any]) -> list[str]:
    """Row counts against the events, and the events against what was counted when written."""
    kinds = Counter(kind.decode() for kind in tables["events"]["kind"].tolist())
    problems = []
    if kinds != json.loads(file.attrs["event_counts"]):
        problems.append("/events has rows of other kinds than when it was written")
    per_task = Counter(tables["events"]["task"].tolist())
    for row, promised in enumerate(tables["tasks"]["events"].tolist()):
        if per_task[row] != promised:
            problems.append(f"/tasks row {row} promises {promised} events, found {per_task[row]}")
    opened = {row for row, key in enumerate(tables["tasks"]["task"].tolist()) if key}
    told = [
        kind.decode()
        for task, kind in zip(tables["events"]["task"], tables["events"]["kind"], strict=True)
        if int(task) in opened
    ]
    for name, kind in _DERIVED.items():
        rows, events = len(tables[name]), told.count(kind)
        # A query id reserved twice is one query.
        if rows > events or (rows < events and name != "queries"):
            problems.append(f"/{name} has {rows} rows for {events} events")
    return problems


def _reference_problems(tables: dict[str, Any], blobs: dict[str, BlobReader]) -> list[str]:
    sizes = {name: len(rows) for name, rows in tables.items()}
    sizes |= {f"blobs/{store}": len(reader) for store, reader in blobs.items()}
    problems = []
    for name, column, target, optional in (r for r in _REFERENCES if r[0] in tables):
        values = tables[name][column]
        lowest = -1 if optional else 0
        wrong = (values < lowest) | (values >= sizes[target])
        problems += [
            f"/{name} row {row}: {column} points outside /{target}" for row in wrong.nonzero()[0]
        ]
    return problems


def _text_problems(tables: dict[str, Any], blobs: dict[str, BlobReader]) -> list[str]:
    """Events with a long text point at it, and candidates carry their source's digest."""
    problems = []
    for row, (kind, text) in enumerate(
        zip(tables["events"]["kind"].tolist(), tables["events"]["text"].tolist(), strict=True)
    ):
        store = text_store(kind.decode())
        if (text != -1) if store is None else not 0 <= text < len(blobs[store]):
            problems.append(f"/events row {row}: text points outside its store")
    candidates = tables["candidates"]
    for row, (source, sha) in enumerate(
        zip(candidates["source"].tolist(), candidates["source_sha256"].tolist(), strict=True)
    ):
        digests = blobs[SOURCE].digests
        if 0 <= source < len(digests) and digests[source] != sha.decode():
            problems.append(f"/candidates row {row}: source_sha256 is not its source's")
    return problems
