"""Retry: the one layer that asks again, with exponential back-off, jitter and Retry-After.

Knows nothing of HTTP: an attempt says with `Transient` that another one may help, and whether the
other side only has too much to do. That passes by itself, mostly within a minute, so it is waited
for as long as there is time; trouble of any other kind is tried a few times. Sleep, clock and
randomness are arguments.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LATER = (1.0, 1.25)
"""By how much more than was asked for is waited: all who were told the same must not come at once.
"""


class Transient(Exception):
    """An attempt failed in a way that may pass. `overloaded`: it was not even looked at."""

    def __init__(
        self, what: str, *, retry_after_s: float | None = None, overloaded: bool = False
    ) -> None:
        self.what, self.retry_after_s, self.overloaded = what, retry_after_s, overloaded
        super().__init__(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to give up."""

    tries: int = 4
    """Attempts that may fail otherwise than by overload."""
    first_wait_s: float = 1.0
    max_wait_s: float = 60.0
    """Of one wait that nobody asked for: limits are mostly per minute."""
    max_total_s: float = 900.0
    """No attempt starts later than this after the first; who asks to wait beyond it is given up
    for now."""


class Waits:
    """Pauses between attempts, of any number of threads, until somebody has no time any more."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Pause. Raises Transient at once when there is no time for another attempt."""
        if self._over.wait(seconds):
            raise Transient("nobody waits for it any longer")

    def end(self) -> None:
        """There is no time any more."""
        self._over.set()


def with_retries(
    attempt: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    rng: random.Random,
) -> T:
    """What the first successful attempt returns. Raises the last Transient, or `sleep`'s."""
    start, seen, failures = clock(), 0, 0
    while True:
        try:
            return attempt()
        except Transient as error:
            seen += 1
            failures += not error.overloaded
            wait_s = _wait_s(error, seen, policy, rng)
            late = clock() - start + wait_s > policy.max_total_s
            if failures >= policy.tries or late:
                raise
            _log.warning("asking again in %.0f s: %s", wait_s, error.what)
        sleep(wait_s)


def _wait_s(error: Transient, seen: int, policy: RetryPolicy, rng: random.Random) -> float:
    full: float = min(policy.max_wait_s, policy.first_wait_s * 2 ** min(seen - 1, 30))
    own_s = full * rng.uniform(0.5, 1.0)
    if error.retry_after_s is None:
        return own_s
    # A server that says "at once" each time is not believed.
    return max(own_s, error.retry_after_s * rng.uniform(*_LATER))
