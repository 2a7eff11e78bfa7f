"""Arithmetic of time: growing pauses with jitter, how long evaluations take and with what."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

_REMEMBERED = 200


class Backoff:
    """Pauses that double from `first_s` to `last_s`, drawn from 50 to 150 % of their length.

    The longest, which repeats, varies by 5 % only: its mean is what a file server bears and its
    maximum what a request waits, so it can't be far from either. What came before has spread the
    workers already.
    """

    def __init__(self, first_s: float, last_s: float, rng: random.Random) -> None:
        self._first_s, self._last_s, self._rng = first_s, last_s, rng
        self._next_s = first_s

    def pause_s(self) -> float:
        """The next pause."""
        now_s, self._next_s = self._next_s, min(self._last_s, self._next_s * 2)
        spread = 0.5 if now_s < self._last_s else 0.05
        return now_s * self._rng.uniform(1 - spread, 1 + spread)

    def reset(self) -> None:
        """Start over with the shortest."""
        self._next_s = self._first_s


class Tally:
    """Seconds by what was being done, for one lane's line in the log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._doing, self._since = "idle", clock()

    def enter(self, doing: str) -> None:
        """From now on this is done."""
        now = self._clock()
        self._spent[self._doing] = self._spent.get(self._doing, 0.0) + now - self._since
        self._doing, self._since = doing, now

    def text(self) -> str:
        """`timing 31 s, build 12 s, idle 3 s`: longest first."""
        self.enter(self._doing)
        longest = sorted(dict(self._spent).items(), key=lambda item: -item[1])
        return ", ".join(f"{doing} {spent_s:.0f} s" for doing, spent_s in longest)


class Durations:
    """The evaluations seen lately."""

    def __init__(self, expected_s: float) -> None:
        self._expected_s = expected_s
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, duration_s: float) -> None:
        """One more."""
        self._seen.append(duration_s)

    def p95_s(self) -> float:
        """The 95th percentile; what was expected while nothing was seen."""
        if not self._seen:
            return self._expected_s
        ordered = sorted(self._seen)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
