"""Recovery: claims of dead workers go back into the queue, or to the dead.

Every worker runs it now and then, idle or busy; agents don't. A lock elects one; since every move
is a rename that only one can win, two at once do no harm, and after a killed holder of a lock that
outlives it the others go on once it stood still for as long as a dead worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pike_hpc.mailbox.commit import remove_any
from pike_hpc.mailbox.files import Gone
from pike_hpc.mailbox.layout import Hold
from pike_hpc.mailbox.leases import Leases
from pike_hpc.mailbox.lost import Stillness, lost_result
from pike_hpc.mailbox.protocol import JobsRun, Liveness
from pike_hpc.mailbox.store import Store
from pike_hpc.records import CodecError, PikeError

_TMP_KEEP_S = 3600.0
"""A file in tmp/ is renamed away within milliseconds; after an hour its writer is dead."""


class Janitor:
    """Watches one mailbox with a memory of what stood still since when."""

    def __init__(
        self, store: Store, clock: Callable[[], float], max_attempts: int, jobs: JobsRun | None
    ) -> None:
        self._store = store
        self._max_attempts = max_attempts
        self._stillness = Stillness(clock)
        self._leases = Leases(clock, jobs, store.beats)

    def requeue_lost(self, *, stale_s: float, is_alive: Liveness) -> int:
        """As in the Mailbox protocol."""
        self._require_room()
        with self._store.locked("janitor", 0) as elected:
            blocked_s = self._stillness.still_s("lock", int(elected))
            if not elected and blocked_s < stale_s:
                return 0
            return self._sweep(stale_s, is_alive)

    def _require_room(self) -> None:
        """Where nobody can write, nobody beats: who stands still then is not dead for that."""
        try:
            self._store.try_room()
        except PikeError:
            self._stillness.forget()
            self._leases.forget()
            raise

    def _sweep(self, stale_s: float, is_alive: Liveness) -> int:
        beats = self._store.beats.all()
        lost = self._leases.lost(beats, stale_s=stale_s, is_alive=is_alive)
        moved, seen = 0, {"lock"}
        for name in self._store.cur_names():
            hold = Hold.parse(name)
            if hold is None:
                path = self._store.root / "cur" / name
                self._store.move_aside(path, "not a claim: its name is not one of ours")
                continue
            seen.add(f"claim {name}")
            if self._is_orphan(hold, beats, lost, stale_s):
                moved += self._recover(hold)
        for holder in lost:
            self._store.beats.remove(holder)
        seen |= self._clean_tmp()
        self._stillness.keep_only(seen)
        return moved

    def _is_orphan(
        self, hold: Hold, beats: Collection[str], lost: Collection[str], stale_s: float
    ) -> bool:
        # The time counts from the first of the looks in a row that found no beat. One look proves
        # nothing: an NFS client may lose sight of a beat that is being replaced.
        beats_here = hold.holder in beats
        missed_s = self._stillness.still_s(f"claim {hold.name}", int(beats_here))
        return hold.holder in lost if beats_here else missed_s >= stale_s

    def _recover(self, hold: Hold) -> bool:
        ticket = hold.ticket
        if self._store.has_result(ticket.request_id):
            self._store.settle(hold)
            return False
        if not hold.judging:
            return self._store.put_back(hold, ticket)
        if ticket.attempt < self._max_attempts:
            return self._store.put_back(hold, ticket.next_attempt())
        return self._bury(hold)

    def _bury(self, hold: Hold) -> bool:
        attempts = hold.ticket.attempt
        try:
            request = self._store.read_request(hold)
        except Gone:
            return False
        except CodecError as error:
            path = self._store.root / "cur" / hold.name
            self._store.move_aside(path, f"not a readable request: {error}")
            return False
        # The dead letter is a commit like any other: a late real result may have won.
        verdict = {hold.ticket.request_id: lost_result(request, attempts)}
        if all(self._store.file_results(verdict).values()):
            self._store.bury(hold, f"{attempts} workers died while judging it")
        else:
            self._store.settle(hold)
        return True

    def _clean_tmp(self) -> set[str]:
        seen = set()
        for name in self._store.files.names(self._store.root / "tmp"):
            key = f"tmp {name}"
            seen.add(key)
            if self._stillness.still_s(key, 0) >= _TMP_KEEP_S:
                remove_any(self._store.files, self._store.root / "tmp" / name)
        return seen
