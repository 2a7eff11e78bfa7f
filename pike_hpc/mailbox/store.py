"""The moves that a mailbox in a folder is made of. Each is atomic, or safe to repeat.

Shared by `FileMailbox` (the verbs) and `Janitor` (recovery); knows no policy.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pike_hpc.mailbox.batch import BATCH_MAX, member, pack
from pike_hpc.mailbox.beats import Beats
from pike_hpc.mailbox.commit import (
    COMMITS,
    link_new,
    read_committed,
    remove_committed,
    remove_own,
)
from pike_hpc.mailbox.envelope import seal, unseal
from pike_hpc.mailbox.files import Files, Gone
from pike_hpc.mailbox.format import open_format
from pike_hpc.mailbox.layout import Hold, Ticket, request_name, result_name, slug
from pike_hpc.mailbox.locks import held
from pike_hpc.mailbox.shards import Shards
from pike_hpc.records import CodecError, EvalRequest, EvalResult, TryAgainLater

R = TypeVar("R")

_LOCK_WAIT_S = 2.0
"""Longer than any batch scan; a holder beyond it is stopped or dead, and we go on without."""

_ROOM_BYTES = 64 * 1024
"""More than a beat, and than a file system's last free block: where this fits, beats do."""

_PATHS = 256
"""Kept of each folder: more than one worker holds at a time."""


class Store:
    """The folder `root`, opened or made."""

    def __init__(
        self,
        root: Path,
        *,
        files: Files,
        wall_ns: Callable[[], int],
        commit: str | None,
        lock: str | None,
        shards: int,
    ) -> None:
        self.root, self.files = root, files
        self._tmp, self._cur, self._done, self._known = (
            root / name for name in ("tmp", "cur", "done", "known")
        )
        # To make a path takes longer than to rename by it, and each is used several times.
        self._in_cur = functools.lru_cache(_PATHS)(self._cur.joinpath)
        self._in_done = functools.lru_cache(_PATHS)(self._done.joinpath)
        self._wall_ns = wall_ns
        self._session = secrets.token_hex(6)
        self.place = secrets.randbelow(1 << 16)
        """A number of this process's own, to begin elsewhere than others do."""
        self._numbers = itertools.count()
        self._ordering = threading.Lock()
        self._last_sequence = 0
        self.beats = Beats(root, files, self.tmp_path)
        form = open_format(root, files, self._unique(), commit=commit, lock=lock, shards=shards)
        self._commit, self._lock = COMMITS[form.commit], form.lock
        self.shards = Shards(root / "new", form.shards)
        self._marks = form.version >= 2
        self._batch = BATCH_MAX if form.version >= 2 and form.commit == "link" else 1

    # names of this process's own

    def _unique(self) -> str:
        return f"{os.getpid()}-{self._session}-{next(self._numbers)}"

    def tmp_path(self) -> Path:
        """A name in tmp/ that nobody else uses."""
        return self._tmp / self._unique()

    def holder(self, worker_id: str) -> str:
        """A worker of this process, in file names: never that of an earlier one of its id."""
        return f"{slug(worker_id)}~{self._session}"

    def new_ticket(self, request_id: str, device_kind: str) -> Ticket:
        """The next place at the end of the queue."""
        with self._ordering:
            self._last_sequence = max(self._last_sequence + 1, self._wall_ns())
            sequence = self._last_sequence
        return Ticket(
            sequence=sequence,
            device=slug(device_kind),
            request_id=request_id,
            attempt=1,
        )

    @contextmanager
    def locked(self, name: str, wait_s: float = _LOCK_WAIT_S) -> Iterator[bool]:
        """Hold a lock of the mailbox; False when it was not to be had in time."""
        with held(self._lock, self.root / "locks" / name, wait_s) as mine:
            yield mine

    # requests

    def new_names(self) -> list[str]:
        """File names of waiting requests, each shard's oldest first."""
        return [name for n in range(len(self.shards.folders)) for name in self.shard_names(n)]

    def shard_names(self, number: int) -> list[str]:
        """File names of one shard's waiting requests, oldest first."""
        return self.files.names(self.shards.folders[number])

    def cur_names(self) -> list[str]:
        """File names of claimed requests."""
        return self.files.names(self._cur)

    def write_tmp(self, data: bytes) -> Path:
        """A complete file in tmp/, on disk."""
        path = self.tmp_path()
        self.files.write_new(path, data)
        return path

    def try_room(self) -> None:
        """Write what is removed again. Raises TryAgainLater where the file system takes nothing."""
        remove_own(self.files, self.write_tmp(bytes(_ROOM_BYTES)))

    def enqueue(self, requests: Mapping[str, EvalRequest]) -> None:
        """Give requests (by id) their places at the end of the queue, durably, in their order."""
        touched: dict[Path, None] = {}
        for batch in self._batches(requests):
            tmp = self.write_tmp(pack([(i, seal(request)) for i, request in batch]))
            tickets = [self.new_ticket(i, request.device_kind) for i, request in batch]
            places = [self.shards.place(ticket) for ticket in tickets]
            touched |= dict.fromkeys(place.parent for place in places)
            if len(batch) == 1:
                self._publish(tmp, places[0], batch[0][0])
            else:
                for place in places:
                    link_new(self.files, tmp, place)
                remove_own(self.files, tmp)
        for folder in touched:
            self.files.sync(folder)

    def _publish(self, tmp: Path, place: Path, request_id: str) -> None:
        try:
            self.files.rename(tmp, place)
        except Gone:
            # NFS may say so after having done it; by now another may have claimed it.
            if not self.known([request_id]):
                raise TryAgainLater("a request was lost on its way", where=repr(str(tmp))) from None

    def _batches(self, records: Mapping[str, R]) -> Iterator[list[tuple[str, R]]]:
        """What shares a file; one each where the file system can't link."""
        items = list(records.items())
        for start in range(0, len(items), self._batch):
            yield items[start : start + self._batch]

    def mark(self, request_id: str) -> bool:
        """Note that a request is to be put; False when it may have been before."""
        if not self._marks:
            return False
        try:
            self.files.write_new(self._known / request_id, b"", durable=False)
        except FileExistsError:
            return False
        return True

    def unmark(self, request_id: str) -> None:
        """Note that nobody waits for a request any more."""
        if self._marks:
            with suppress(Gone):
                self.files.unlink(self._known / request_id)

    def is_waited_for(self, request_id: str) -> bool:
        """Whether somebody still waits for a request that was put once."""
        if self._marks:
            return self.files.exists(self._known / request_id)
        return request_id in self.known([request_id])

    def take(self, ticket: Ticket, worker_id: str) -> Hold | None:
        """Claim a request for a worker of this process; None when another was faster."""
        hold = Hold(ticket=ticket, holder=self.holder(worker_id), number=next(self._numbers))
        target = self._in_cur(hold.name)
        try:
            self.files.rename(self.shards.place(ticket), target)
        except Gone:
            # NFS may say so after having done it; the name that only we use decides.
            return hold if self.files.exists(target) else None
        return hold

    def read_request(self, hold: Hold) -> EvalRequest:
        """The claimed request. Raises Gone, or CodecError for anything but that request."""
        path, request_id = self._in_cur(hold.name), hold.ticket.request_id
        request = _unsealed(EvalRequest, self.files.read, path, request_id)
        found = (request.request_id, slug(request.device_kind))
        if found != (hold.ticket.request_id, hold.ticket.device):
            raise CodecError("it holds another request than its name says")
        return request

    def mark_judging(self, hold: Hold) -> bool:
        """Move a hold to its judging state; False when it is lost."""
        before, after = hold.as_judging(False), hold.as_judging(True)
        try:
            self.files.rename(self._in_cur(before.name), self._in_cur(after.name))
        except Gone:
            return self.has_hold(after)
        return True

    def has_hold(self, hold: Hold) -> bool:
        """Whether this very name is in cur/."""
        return self.files.exists(self._in_cur(hold.name))

    def put_back(self, hold: Hold, ticket: Ticket) -> bool:
        """Return a held request to the queue; False when the hold was lost."""
        try:
            self.files.rename(self._in_cur(hold.name), self.shards.place(ticket))
        except Gone:
            return False
        return True

    def settle(self, *names: Hold) -> None:
        """Drop a hold, whichever of the names it has; the request is kept until discarded."""
        for hold in names:
            kept = self._done / request_name(hold.ticket.request_id)
            with suppress(Gone):
                self.files.rename(self._in_cur(hold.name), kept)
                return

    def known(self, request_ids: Collection[str]) -> set[str]:
        """Those that are waiting, claimed or done: a listing of each folder, in that order.

        A request moving forward meanwhile is met in the later folder; new/ is listed twice for
        those that a janitor moves back.
        """
        found: set[str] = set()
        for names in (self.new_names, self.cur_names, self.done_names, self.new_names):
            wanted = set(request_ids) - found
            if not wanted:
                break
            found |= wanted & {part for name in names() for part in name.split(".")[:3]}
        return found

    # results

    def done_names(self) -> list[str]:
        """File names of results, and of the requests kept beside them."""
        return self.files.names(self._done)

    def has_result(self, request_id: str) -> bool:
        """Whether a result stands."""
        return self.files.exists(self._in_done(result_name(request_id)))

    def file_results(self, results: Mapping[str, EvalResult]) -> dict[str, bool]:
        """Commit each (by request id); False for those of which another result stands.

        What is in a result is on disk, its name need not be: where a power cut takes the name,
        the request is still there and is judged again.
        """
        won: dict[str, bool] = {}
        for batch in self._batches(results):
            tmp = self.write_tmp(pack([(i, seal(result)) for i, result in batch]))
            names = {i: self._in_done(result_name(i)) for i, _ in batch}
            if len(batch) == 1:
                won |= {i: self._commit(self.files, tmp, name) for i, name in names.items()}
            else:
                won |= {i: link_new(self.files, tmp, name) for i, name in names.items()}
                remove_own(self.files, tmp)
        return won

    def read_result(self, request_id: str) -> EvalResult:
        """The result that stands. Raises Gone, or CodecError for anything but that result."""
        path = self._in_done(result_name(request_id))
        result = _unsealed(EvalResult, lambda p: read_committed(self.files, p), path, request_id)
        if result.request_id != request_id:
            raise CodecError("it holds another result than its name says")
        return result

    def judge_again(self, request_id: str) -> None:
        """Queue the request kept beside a result that is no longer there."""
        kept = self._done / request_name(request_id)
        with suppress(Gone):
            try:
                request = _unsealed(EvalRequest, self.files.read, kept, request_id)
            except CodecError as error:
                self.move_aside(kept, f"not a readable request: {error}")
                return
            place = self.shards.place(self.new_ticket(request_id, request.device_kind))
            self.files.rename(kept, place)
            self.files.sync(place.parent)

    def forget_request(self, request_id: str) -> bool:
        """Remove the request kept beside a result; False when it lies elsewhere, if at all."""
        try:
            self.files.unlink(self._done / request_name(request_id))
        except Gone:
            return False
        return True

    def forget_result(self, request_id: str) -> None:
        """Remove a result."""
        with suppress(Gone):
            path = self._in_done(result_name(request_id))
            remove_committed(self.files, path, self.tmp_path())

    # the dead

    def move_aside(self, path: Path, reason: str) -> None:
        """Out of the way, into dead/, with the reason beside it for a person."""
        target = self.root / "dead" / f"{path.name[:120]}.{self._unique()}"
        with suppress(Gone):
            self.files.rename(path, target)
            self._write_reason(target, reason)

    def bury(self, hold: Hold, reason: str) -> None:
        """Leave a copy of a dead request in dead/ for people and settle it."""
        target = self.root / "dead" / hold.ticket.name
        with suppress(Gone):
            data = self.files.read(self._in_cur(hold.name))
            copy = self.write_tmp(member(data, hold.ticket.request_id))
            self.files.rename(copy, target)
            self._write_reason(target, reason)
        self.settle(hold)

    def _write_reason(self, target: Path, reason: str) -> None:
        tmp = self.write_tmp((reason + "\n").encode("utf-8", "replace"))
        self.files.rename(tmp, target.with_name(target.name + ".reason"))


def _unsealed(kind: type[R], read: Callable[[Path], bytes], path: Path, request_id: str) -> R:
    try:
        return unseal(kind, member(read(path), request_id))
    except (OSError, UnicodeError) as error:
        raise CodecError(str(error)) from None
