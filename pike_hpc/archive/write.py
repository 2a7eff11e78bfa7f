"""A run's events as the bytes of an HDF5 file. Pure: the same run gives the same bytes.

The file is made in memory: what reaches the disk is one whole image, written, synced and put
in place by `rebuild`, so no half-made HDF5 file can ever be found.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py

from pike_hpc import __version__
from pike_hpc.archive.blob_store import BlobWriter, write_array
from pike_hpc.archive.body import BODY, SOURCE, STORES, split, to_bytes
from pike_hpc.archive.elites import elites
from pike_hpc.archive.fold import fold
from pike_hpc.archive.layout import FORMAT, FORMAT_VERSION
from pike_hpc.archive.record import QueryOutcome, TaskRecord, TaskState
from pike_hpc.archive.tables import (
    CANDIDATES,
    ELITES,
    EVALUATIONS,
    EVENTS,
    PROPOSALS,
    QUERIES,
    TASKS,
    Row,
    elite_row,
    evaluation_row,
    proposal_row,
    query_row,
    table,
)
from pike_hpc.journal import Stamped
from pike_hpc.records import Evaluated, Proposed, QueryAnswered, QueryReserved


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """All that an archive is made of."""

    run_id: str
    config: bytes
    """run.yaml as it is."""
    watermark: Mapping[str, int]
    """Journal segments and their sizes, taken before the events were read."""
    tasks: Mapping[str, tuple[Stamped, ...]]
    """Task slug to its events."""


def archive_image(content: RunContent) -> bytes:
    """The bytes of the HDF5 file."""
    tables = _Tables()
    for index, slug in enumerate(sorted(content.tasks)):
        tables.add_task(index, slug, content.tasks[slug])
    with h5py.File(
        "image", "w", driver="core", backing_store=False, libver=("earliest", "v110")
    ) as file:
        _write_attributes(file, content, complete=tables.complete)
        for name, columns, rows in tables.all():
            write_array(file, name, table(columns, rows))
        for store in STORES:
            tables.blobs[store].write(file.create_group(f"blobs/{store}"))
        config = BlobWriter()
        config.add(content.config)
        config.write(file.create_group("provenance/run_yaml"))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def config_sha256(config: bytes) -> str:
    """Hex digest of run.yaml's bytes."""
    return hashlib.sha256(config).hexdigest()


def watermark_json(watermark: Mapping[str, int]) -> str:
    """The form of a watermark in the archive."""
    return json.dumps(watermark, sort_keys=True, separators=(",", ":"))


@dataclass(slots=True)
class _Tables:
    """The rows while they grow."""

    tasks: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    candidates: list[Row] = field(default_factory=list)
    proposals: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    elites: list[Row] = field(default_factory=list)
    queries: list[Row] = field(default_factory=list)
    blobs: dict[str, BlobWriter] = field(
        default_factory=lambda: {store: BlobWriter() for store in STORES}
    )
    complete: bool = True

    def all(self) -> tuple[tuple[str, Any, list[Row]], ...]:
        return (
            ("tasks", TASKS, self.tasks),
            ("events", EVENTS, self.events),
            ("candidates", CANDIDATES, self.candidates),
            ("proposals", PROPOSALS, self.proposals),
            ("evaluations", EVALUATIONS, self.evaluations),
            ("elites", ELITES, self.elites),
            ("queries", QUERIES, self.queries),
        )

    def add_task(self, index: int, slug: str, events: tuple[Stamped, ...]) -> None:
        record = fold(slug, events)
        self.complete &= record is not None and record.state is TaskState.FINISHED
        first = len(self.events)
        texts = [self._add_event(index, stamped) for stamped in events]
        if record is None:
            self.tasks.append((slug, "", "", "", "", "", len(events)))
            return
        task = record.task
        self.tasks.append(
            (slug, task.key, task.digest, task.variant.value, record.device_kind,
             record.state.value, len(events))
        )  # fmt: skip
        self._derive(index, record, first, texts)

    def _add_event(self, index: int, stamped: Stamped) -> int:
        """One row of /events; the row of its text in the store of its kind, or -1."""
        parts = split(stamped.event)
        body = self.blobs[BODY].add(parts.body)
        text = -1 if parts.store is None else self.blobs[parts.store].add(parts.text)
        self.events.append(
            (index, stamped.epoch, stamped.seq, stamped.time, parts.kind, body, text)
        )
        return text

    def _derive(self, index: int, record: TaskRecord, first: int, texts: list[int]) -> None:
        """The rows that repeat events in a form for people."""
        candidates: dict[str, int] = {}
        for candidate_id, source in record.sources.items():
            candidates[candidate_id] = len(self.candidates)
            row = self.blobs[SOURCE].add(to_bytes(source))
            sha = self.blobs[SOURCE].sha256(row)
            self.candidates.append((index, candidate_id, row, sha))
        for elite in elites(record):
            known = candidates.get(elite.retimed.candidate_id, -1)
            self.elites.append(elite_row(index, known, elite))
        proposals = iter(record.proposals)
        results, retimes = iter(record.results), iter(record.retimes)
        queries = {query.query_id: query for query in record.queries}
        answers = {
            stamped.event.query_id: text
            for stamped, text in zip(record.events, texts, strict=True)
            if isinstance(stamped.event, QueryAnswered)
        }
        for row, (stamped, text) in enumerate(zip(record.events, texts, strict=True), first):
            match stamped.event:
                case Proposed():
                    made = next(proposals)
                    known = candidates[made.proposal.candidate_id]
                    self.proposals.append(proposal_row(index, row, known, made))
                case Evaluated():
                    final = next(retimes if stamped.event.result.key.retime else results)
                    known = candidates.get(final.result.candidate_id, -1)
                    self.evaluations.append(evaluation_row(index, row, known, text, final))
                case QueryReserved(query_id=query_id) if query_id in queries:
                    query = queries.pop(query_id)
                    answered = query.outcome is QueryOutcome.ANSWERED
                    answer = answers[query_id] if answered else -1
                    self.queries.append(query_row(index, row, answer, query))
                case _:
                    pass


def _write_attributes(file: Any, content: RunContent, *, complete: bool) -> None:
    counts = Counter(type(s.event).__name__ for events in content.tasks.values() for s in events)
    file.attrs["format"] = FORMAT
    file.attrs["format_version"] = FORMAT_VERSION
    file.attrs["run_id"] = content.run_id
    file.attrs["created"] = _created(content)
    file.attrs["software_version"] = __version__
    file.attrs["config_sha256"] = config_sha256(content.config)
    file.attrs["watermark"] = watermark_json(content.watermark)
    file.attrs["event_counts"] = json.dumps(counts, sort_keys=True)
    file.attrs["complete"] = complete and bool(content.tasks)


def _created(content: RunContent) -> str:
    """Time of the first event: the archive's own age would make two rebuilds differ."""
    times = [stamped.time for events in content.tasks.values() for stamped in events]
    try:
        first = datetime.datetime.fromtimestamp(min(times), tz=datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return first.isoformat(timespec="seconds")
