"""Reading an archive back into records: /events is decoded, the tables are not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pike_hpc.archive.blob_store import BlobReader
from pike_hpc.archive.body import STORES, SplitEvent, join, text_store
from pike_hpc.archive.fold import fold
from pike_hpc.archive.layout import damaged, open_archive
from pike_hpc.archive.record import RunArchive
from pike_hpc.journal import Stamped
from pike_hpc.records import CodecError


def read(path: Path) -> RunArchive:
    """The run in an archive.

    Raises UsageError when the file is missing, foreign, damaged or of another version.
    """
    try:
        with open_archive(path) as file:
            events = _events(file)
            config = BlobReader(file["provenance/run_yaml"]).get(0)
            tasks = (fold(slug, stamped) for slug, stamped in events.items())
            return RunArchive(
                run_id=str(file.attrs["run_id"]),
                created=str(file.attrs["created"]),
                software_version=str(file.attrs["software_version"]),
                complete=bool(file.attrs["complete"]),
                config_text=config.decode("utf-8", "replace"),
                tasks=tuple(task for task in tasks if task is not None),
            )
    except CodecError as error:
        raise damaged(path, str(error)) from None


def _events(file: Any) -> dict[str, tuple[Stamped, ...]]:
    """Task slug to its events, in the order of the journal."""
    blobs = {store: BlobReader(file[f"blobs/{store}"]) for store in STORES}
    slugs = [bytes(slug).decode() for slug in file["tasks"]["slug"]]
    found: dict[str, list[Stamped]] = {slug: [] for slug in slugs}
    for task, stamped in _decoded(file["events"][()], blobs):
        found[slugs[task]].append(stamped)
    return {slug: tuple(events) for slug, events in found.items()}


def _decoded(rows: Any, blobs: dict[str, BlobReader]) -> Iterator[tuple[int, Stamped]]:
    for task, epoch, seq, time, kind, body, text in rows.tolist():
        name = kind.decode()
        store = text_store(name)
        parts = SplitEvent(
            kind=name,
            body=blobs["event"].get(body),
            store=store,
            text=blobs[store].get(text) if store else b"",
        )
        yield task, Stamped(time=time, epoch=epoch, seq=seq, event=join(parts))
