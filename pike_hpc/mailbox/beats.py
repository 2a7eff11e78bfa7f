"""workers/: the signs of life in a mailbox, and beside them what was last heard of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from pike_hpc.mailbox.files import Files, Gone
from pike_hpc.mailbox.layout import JOBS_FILE
from pike_hpc.mailbox.leases import Heard
from pike_hpc.mailbox.message import WorkerBeat
from pike_hpc.records import CodecError, TryAgainLater, from_json, to_json


class Beats:
    """The beats of the mailbox in `root`. `tmp_path` gives names in tmp/ that nobody else uses."""

    def __init__(self, root: Path, files: Files, tmp_path: Callable[[], Path]) -> None:
        self._root, self._files, self._tmp_path = root, files, tmp_path

    def write(self, holder: str, beat: WorkerBeat) -> None:
        """Replace a sign of life."""
        self._replace(self._path(holder), to_json(beat))

    def all(self) -> dict[str, WorkerBeat]:
        """Holder to its last readable beat."""
        beats = {}
        for name in self._files.names(self._root / "workers"):
            with suppress(Gone, CodecError, OSError, UnicodeError):
                data = self._files.read(self._root / "workers" / name)
                beats[name.removesuffix(".json")] = from_json(WorkerBeat, data)
        return beats

    def ages_s(self, holders: Collection[str]) -> dict[str, float]:
        """Seconds since their last beats by the file server's clock, of those that still beat."""
        now_s = self._files.server_now_s(self._tmp_path()) if holders else 0.0
        ages = {}
        for holder in holders:
            with suppress(Gone):
                ages[holder] = max(0.0, now_s - self._files.modified_s(self._path(holder)))
        return ages

    def remove(self, holder: str) -> None:
        """Take a sign of life away."""
        with suppress(Gone):
            self._files.unlink(self._path(holder))

    def heard(self) -> Heard | None:
        """What somebody heard last of workers' jobs; None where nobody has asked."""
        try:
            return from_json(Heard, self._files.read(self._root / JOBS_FILE))
        except (Gone, CodecError, OSError, UnicodeError):
            return None

    def note(self, heard: Heard) -> None:
        """Tell the others what was heard; where that fails they ask themselves."""
        with suppress(TryAgainLater):
            self._replace(self._root / JOBS_FILE, to_json(heard))

    def _replace(self, path: Path, text: str) -> None:
        """Not forced to disk: after a power cut nobody lives."""
        tmp = self._tmp_path()
        self._files.write_new(tmp, text.encode("utf-8", "surrogatepass"), durable=False)
        # Gone: the answer got lost, or the next one comes soon.
        with suppress(Gone):
            self._files.rename(tmp, path)

    def _path(self, holder: str) -> Path:
        return self._root / "workers" / f"{holder}.json"
