"""Retry: the one layer that asks again, with exponential back-off, jitter and Retry-After.

Knows nothing of HTTP: an attempt says with `Transient` that another one may help. Sleep, clock
and randomness are arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Transient(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, what: str, *, retry_after_s: float | None = None) -> None:
        self.what, self.retry_after_s = what, retry_after_s
        super().__init__(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to give up."""

    tries: int = 4
    first_wait_s: float = 1.0
    max_wait_s: float = 30.0
    """Of one wait; a provider that asks for longer is given up for now."""
    max_total_s: float = 900.0
    """No attempt starts later than this after the first."""


def with_retries(
    attempt: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    rng: random.Random,
) -> T:
    """What the first successful attempt returns. Raises the last Transient."""
    start = clock()
    for failures in range(1, policy.tries + 1):
        try:
            return attempt()
        except Transient as error:
            wait_s = _wait_s(error, failures, policy, rng)
            late = clock() - start + wait_s > policy.max_total_s
            if failures == policy.tries or wait_s > policy.max_wait_s or late:
                raise
        sleep(wait_s)
    raise ValueError("a policy allows at least one try")


def _wait_s(error: Transient, failures: int, policy: RetryPolicy, rng: random.Random) -> float:
    if error.retry_after_s is not None:
        return error.retry_after_s
    full: float = min(policy.max_wait_s, policy.first_wait_s * 2 ** (failures - 1))
    return full * rng.uniform(0.5, 1.0)
