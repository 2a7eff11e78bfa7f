"""Query: one question to a model, from its reservation to what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pike_hpc.records import QueryAnswered, QueryReserved


class QueryState(enum.StrEnum):
    """Where a model query stands."""

    RESERVED = "reserved"
    """Sent, or about to be: from here on it may have been paid."""
    ANSWERED = "answered"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One model query as the journal tells it."""

    reserved: QueryReserved
    state: QueryState = QueryState.RESERVED
    answer: QueryAnswered | None = None
    charged: bool = True
    """Counts against the budget: everything but a failure that the provider did not charge."""

    @property
    def usd(self) -> float:
        """Its cost: measured once answered, the ceiling while unknown, 0 when not charged."""
        if not self.charged:
            return 0.0
        if self.answer is not None:
            return self.answer.usage.cost_usd
        return self.reserved.max_cost_usd
