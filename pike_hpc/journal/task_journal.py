"""The writing side of a task's journal: one controller at a time, one segment per controller.

Opening takes the task's controller lock, replays what counts (all of it, or what follows the
snapshot that the caller has left), and starts the next epoch in a segment of its own, so that no
two processes ever write one file. An event appended durably has been fsynced, and its segment's
name with it, before `append` returns. Time is an argument. Knows nothing of what events mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from pike_hpc.journal.disk import Disk, OsDisk, explain, write_all
from pike_hpc.journal.history import History, read_history
from pike_hpc.journal.line import Place, Stamped, to_line
from pike_hpc.journal.lock import Held, LockKind, WriterLock
from pike_hpc.journal.segment import (
    Extent,
    SegmentName,
    checked_slug,
    journal_folder,
    list_segments,
    read_event,
    writer_slug,
)
from pike_hpc.journal.snapshot import Snapshot, read_snapshot, write_snapshot
from pike_hpc.records import ControllerStarted, Event, TryAgainLater

_log = logging.getLogger(__name__)


class TaskJournal:
    """A task's journal opened for writing. Safe to share between threads of one process."""

    def __init__(
        self, *, name: SegmentName, path: Path, fd: int, lock: WriterLock, disk: Disk,
        history: History, clock: Callable[[], float], made_by: str,
    ) -> None:  # fmt: skip
        self._name, self._path, self._fd = name, path, fd
        self._run_dir = path.parent.parent
        self._lock, self._disk, self._clock = lock, disk, clock
        self._made_by = made_by
        self._past = dataclasses.replace(history, events=())
        self._events = list(history.events)
        self._first = len(self._events)
        self._extent = Extent()
        self._synced = 0
        self._synced_events = self._first
        self._state = "open"
        self._mutex = threading.RLock()

    @classmethod
    def open(
        cls,
        run_dir: Path,
        slug: str,
        *,
        writer: str,
        seed: int,
        clock: Callable[[], float],
        disk: Disk | None = None,
        lock_kind: LockKind | None = None,
        made_by: str = "",
    ) -> TaskJournal:
        """Take the task over and replay it.

        writer names this controller for people, clock gives Unix time, made_by whose snapshots
        are gone on from (see `snapshot`) and how those saved here are marked; "": all events are
        read. Raises TryAgainLater
        when another controller has the task or the disk is full, PikeError for a damaged
        journal, UsageError for one of another version.
        """
        disk = disk or OsDisk()
        path = journal_folder(run_dir) / "locks" / f"{checked_slug(slug)}.lock"
        lock = WriterLock.take(path, writer=writer, clock=clock, kind=lock_kind)
        try:
            snapshot = read_snapshot(run_dir, slug, made_by) if made_by else None
            name, fd, history = _create_segment(run_dir, slug, writer, disk, snapshot)
        except BaseException:
            lock.release()
            raise
        path = journal_folder(run_dir) / str(name)
        journal = cls(
            name=name, path=path, fd=fd, lock=lock, disk=disk, history=history, clock=clock,
            made_by=made_by,
        )  # fmt: skip
        journal._start(writer, seed, history.counts)
        return journal

    @property
    def snapshot(self) -> bytes | None:
        """What was made of the events before `events`; None: there are none before."""
        return self._past.snapshot.body if self._past.snapshot is not None else None

    @property
    def events(self) -> tuple[Stamped, ...]:
        """Every event that counts, oldest first, those appended here included.

        Those that the snapshot covers are left out.
        """
        return tuple(self._events)

    def read(self, place: Place) -> Event:
        """The event at a place of this task's journal. Raises PikeError where it is damaged."""
        return read_event(self._run_dir, place)

    def save(self, body: bytes, *, own: bool = True) -> None:
        """Leave a snapshot: what was made of all events; without `own` of those before this epoch.

        It only spares the next one time, so a disk that does not take it is no error.
        """
        with self._mutex:
            if not self._made_by or self._state != "open":
                return
            covers = dict(self._past.extents)
            if own:
                self.sync()
                covers[str(self._name)] = self._extent
            if not covers:
                return
            snapshot = Snapshot(covers=covers, body=body)
            try:
                write_snapshot(
                    self._run_dir, self._name.slug, snapshot, made_by=self._made_by,
                    disk=self._disk,
                )  # fmt: skip
            except OSError as error:
                _log.warning("no snapshot of %s: %s", self._name.slug, error)

    def take_events(self) -> tuple[Stamped, ...]:
        """Every event that counts, and they are no longer kept here.

        Whoever drives a large task keeps a view of it, not its past: `events` begins with what is
        appended after this.
        """
        with self._mutex:
            self.sync()
            taken = tuple(self._events)
            self._events.clear()
            self._first -= len(taken)
            self._synced_events = 0
            return taken

    @property
    def epoch(self) -> int:
        """The epoch this controller started."""
        return self._name.epoch

    def require_newest(self) -> None:
        """Raise Held where another controller has taken the task over: this one counts no more.

        For whoever is about to do what nobody can undo. One listing.
        """
        newest = max(list_segments(self._run_dir, self._name.slug), default=self._name)
        if newest.epoch > self.epoch:
            raise Held(
                f"{newest.writer} has taken the task over: what was written here since then is "
                "ignored",
                where=str(self._path.with_name(str(newest))),
                fix="nothing to do, the other one goes on; to see how: pike-hpc status "
                f"'{self._run_dir}'",
            )

    @property
    def torn(self) -> Mapping[str, int]:
        """Older segments that end in a torn line, with the bytes ignored: worth a log line."""
        return dict(self._past.torn)

    def append(self, event: Event, *, durable: bool = True) -> Stamped:
        """Write an event; with durable, on stable storage before this returns.

        Raises TryAgainLater when the disk takes no more: the event then does not count. After a
        failed fsync the journal takes no further events; those not yet durable don't count.
        """
        with self._mutex:
            self._require_open()
            stamped = Stamped(
                time=float(self._clock()), epoch=self.epoch, seq=self._extent.events, event=event
            )
            line = to_line(stamped)
            size = self._extent.size
            try:
                write_all(self._disk, self._fd, line, size)
            except OSError as error:
                self._cut(size)
                raise explain(error, self._path, "append to the journal") from None
            place = Place(segment=str(self._name), seq=stamped.seq, offset=size, size=len(line) - 1)
            stamped = dataclasses.replace(stamped, place=place)
            self._extent = self._extent.and_line(line)
            self._events.append(stamped)
            if durable:
                self.sync()
            return stamped

    def sync(self) -> None:
        """Make every event appended so far durable. Raises TryAgainLater as `append` does."""
        with self._mutex:
            self._require_open()
            if self._synced == self._extent.size:
                return
            try:
                self._disk.sync(self._fd)
            except OSError as error:
                # The kernel may have dropped what it could not write: only synced bytes are sure.
                self._state = "failed"
                self._cut(self._synced)
                del self._events[self._synced_events :]
                raise explain(error, self._path, "make the journal durable") from None
            self._synced, self._synced_events = self._extent.size, len(self._events)

    @property
    def idle(self) -> bool:
        """Whether this controller has said nothing but that it started."""
        return len(self._events) == self._first + 1

    def close(self, *, keep_idle: bool = True) -> None:
        """Sync, close and let the next controller in; a second call does nothing.

        Without `keep_idle` one that had nothing to say leaves no segment behind.
        """
        with self._mutex:
            if self._state == "closed":
                return
            try:
                if self._state == "open":
                    self.sync()
                    if not keep_idle:
                        self._withdraw_if_idle()
            finally:
                self._leave()

    def __enter__(self) -> TaskJournal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, writer: str, seed: int, inherited: Mapping[str, int]) -> None:
        started = ControllerStarted(epoch=self.epoch, writer=writer, inherited=inherited, seed=seed)
        try:
            self.append(started)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            self._leave()
            raise explain(error, self._path.parent, "make the journal durable") from None
        except BaseException:
            self._leave()
            raise

    def _withdraw_if_idle(self) -> None:
        """Remove a segment that holds nothing, unless somebody may have gone on from it."""
        newest = list_segments(self._run_dir, self._name.slug)[-1:]
        if self.idle and newest == (self._name,):
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)

    def _leave(self) -> None:
        self._state = "closed"
        try:
            self._disk.close(self._fd)
        except OSError as error:
            raise explain(error, self._path, "close the journal") from None
        finally:
            self._lock.release()

    def _cut(self, size: int) -> None:
        """Drop what follows size, so that nothing half-written lies between two events."""
        try:
            self._disk.truncate(self._fd, size)
        except OSError:
            # The torn line stays the last one: readers ignore it, and nothing may follow it.
            self._state = "failed"

    def _require_open(self) -> None:
        if self._state != "open":
            raise TryAgainLater(
                f"the journal is {self._state} and takes no more events",
                where=str(self._path),
                fix="give the same command again: it goes on from the last durable event",
            )


def _create_segment(
    run_dir: Path, slug: str, writer: str, disk: Disk, snapshot: Snapshot | None
) -> tuple[SegmentName, int, History]:
    """An empty segment of an epoch newer than any, and the history before it."""
    folder = journal_folder(run_dir)
    while True:
        known = list_segments(run_dir, slug)
        epoch = known[-1].epoch + 1 if known else 1
        name = SegmentName(epoch, writer_slug(writer), slug)
        history = read_history(run_dir, slug, snapshot)
        try:
            fd = disk.create(folder / str(name))
        except FileExistsError:
            continue
        except OSError as error:
            raise explain(error, folder, "create a journal segment") from None
        # Creating a name makes network clients list the folder anew: a segment that the cached
        # listing hid shows up now.
        if list_segments(run_dir, slug) == (*known, name):
            return name, fd, history
        with contextlib.suppress(OSError):
            disk.close(fd)
            disk.unlink(folder / str(name))
