"""When a worker counts as lost, and the verdict on a request that kills its workers.

Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pike_hpc.records import EvalRequest, EvalResult, EvalStatus


class Stillness:
    """For how long counters have stood still, by the observer's own monotonic clock.

    Clocks of two machines are never compared: what counts is when *this* process first saw
    the value it still sees.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def still_s(self, name: str, counter: int) -> float:
        """Seconds since `name` was first seen with this counter; 0 at first sight."""
        known = self._seen.get(name)
        if known is None or known[0] != counter:
            known = (counter, self._clock())
            self._seen[name] = known
        return self._clock() - known[1]

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all others: they are gone."""
        self._seen = {n: v for n, v in self._seen.items() if n in names}

    def forget(self) -> None:
        """Count anew from the next sight of each."""
        self._seen = {}


def lost_result(request: EvalRequest, attempts: int) -> EvalResult:
    """The dead letter's verdict."""
    return EvalResult(
        key=request.key,
        status=EvalStatus.WORKER_LOST,
        message=f"{attempts} workers died while judging it; it is not tried again",
    )
