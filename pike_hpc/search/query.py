"""Queries: what was asked of a model, and what is known of each question.

A search asks thousands, and most are over: of those only the bill is kept, in a tuple that is
cheap to make. The question and its answer are kept as long as something is to be made of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from pike_hpc.records import QueryAnswered, QueryReserved


class QueryState(enum.StrEnum):
    """Where a model query stands."""

    RESERVED = "reserved"
    """Sent, or about to be: from here on it may have been paid."""
    ANSWERED = "answered"
    FAILED = "failed"
    LOST = "lost"


class Query(NamedTuple):
    """The bill of one model query as the journal tells it."""

    node: str
    state: QueryState = QueryState.RESERVED
    charged: bool = True
    """Counts against the budget: everything but a failure that the provider did not charge."""
    usd: float = 0.0
    """Its cost: measured once answered, the ceiling while unknown, 0 when not charged."""
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuery:
    """A question whose answer is awaited, or of whose answer nothing was made yet."""

    reserved: QueryReserved
    answer: QueryAnswered | None = None
