"""The door between agents and workers: at-least-once judging, exactly-once commit.

`FileMailbox` and `MemoryMailbox` pass the same conformance suite. Any method may raise
TryAgainLater (disk full, file system not answering); nothing is lost then and the same call
may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from pike_hpc.mailbox.message import Claim, QueueCounts, SeenWorker, WorkerBeat
from pike_hpc.records import EvalRequest, EvalResult

Liveness = Callable[[WorkerBeat], bool | None]
"""True: certainly alive, False: certainly dead, None: can't tell from here."""

JobsRun = Callable[[Collection[str]], Mapping[str, bool | None]]
"""Whether jobs run, by the names that beats carry: True, False, or None where nobody can tell.
May take seconds; never raises."""


class Watch(Protocol):
    """Tells a worker that has nothing to do that something may have come."""

    def arm(self) -> None:
        """From here on something that comes rings, once. To be called before a look."""
        ...

    def came(self) -> bool:
        """Whether it has rung since this was asked last."""
        ...

    def close(self) -> None:
        """Rings no more."""
        ...


class Mailbox(Protocol):
    """Requests in, results out."""

    def put(self, request: EvalRequest) -> bool:
        """File a request durably. False when it is new, claimed or done already."""
        ...

    def put_many(self, requests: Sequence[EvalRequest]) -> tuple[bool, ...]:
        """`put` for each, in order, for less: a kill between leaves some in and some not."""
        ...

    def claim(
        self, worker_id: str, device_kinds: frozenset[str], limit: int = 1
    ) -> tuple[Claim, ...]:
        """The oldest requests for one of `device_kinds`, at most `limit`, for this worker only."""
        ...

    def judging(self, claim: Claim) -> bool:
        """Mark that judging starts: from here a death counts. False when the claim is lost."""
        ...

    def commit(self, claim: Claim, result: EvalResult) -> bool:
        """File the result and drop the claim.

        False when another attempt's result stands or the request was discarded; the caller's
        result is then worth nothing. Raises ValueError for the result of another request.
        """
        ...

    def commit_many(self, judged: Sequence[tuple[Claim, EvalResult]]) -> tuple[bool, ...]:
        """`commit` for each pair, for less; each result stands or falls by itself."""
        ...

    def release(self, claim: Claim, *, tried: bool = False) -> None:
        """Give the request back to its place. Does nothing for a lost claim.

        An attempt counts only where it was `tried`, and never buries: the last one stays the last.
        """
        ...

    def results(self, request_ids: Collection[str]) -> dict[str, EvalResult]:
        """Those of the results asked for that exist, dead letters (WORKER_LOST) included."""
        ...

    def discard(self, request_ids: Collection[str]) -> None:
        """Forget requests whose results are journalled: result, stray copies and claims."""
        ...

    def withdraw(self, request_ids: Collection[str]) -> frozenset[str]:
        """Take back what nobody has begun to judge; those left: being judged, or with a result.

        A worker that holds a request withdrawn here finds its claim lost.
        """
        ...

    def beat(self, beat: WorkerBeat) -> None:
        """Replace this worker's sign of life."""
        ...

    def workers(self) -> tuple[SeenWorker, ...]:
        """Every worker that beats and has not retired, by id."""
        ...

    def retire(self, worker_id: str) -> None:
        """Take this worker's sign of life away: it left by plan."""
        ...

    def requeue_lost(self, *, stale_s: float, is_alive: Liveness) -> int:
        """Return the claims of dead workers to the queue; how many were moved.

        A worker is dead at once when `is_alive` says False. One that can't be seen from here and
        gives no sign of life is dead when its job has ended, and not yet when its job runs. Else
        the caller's own monotonic clock decides: its counter stood still for `stale_s`. Claims
        without a beat age likewise.
        """
        ...

    def watch(self, ring: Callable[[], None]) -> Watch | None:
        """Ring, from another thread, when requests may have come; None where one has to look.

        A help, no promise: whoever watches looks now and then all the same.
        """
        ...

    def waiting(self) -> int:
        """Requests that nobody has claimed, of any kind of device. Cheap."""
        ...

    def counts(self) -> QueueCounts:
        """What lies where now."""
        ...

    def close(self) -> None:
        """The run is finished: workers leave."""
        ...

    def reopen(self) -> None:
        """The run goes on."""
        ...

    def closed(self) -> bool:
        """Whether workers shall leave."""
        ...
