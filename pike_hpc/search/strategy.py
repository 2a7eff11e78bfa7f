"""Strategy: what to do next, decided from the view alone.

Contract: `decide` is pure. It returns every action that is ready now and whose node is not yet
decided or under way, in the order in which they are to be started; `()` means wait for what is
under way; a single `Finish` means the search is over. Equal views give equal actions, so a
killed search goes on as if nothing had happened. The caller asks `budget` before each step that
costs something, for only the caller knows its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pike_hpc.records import Tier
from pike_hpc.search.actions import Action
from pike_hpc.search.budget import Limits
from pike_hpc.search.view import TaskView


class Strategy(Protocol):
    """A way of searching."""

    def decide(self, view: TaskView) -> tuple[Action, ...]:
        """The actions that are ready now; () to wait; one Finish at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every strategy is built from."""

    limits: Limits
    portfolio: tuple[tuple[str, ...], ...] = ()
    """Compositions of rules, in the order in which they are tried."""
    has_model: bool = False
    tiers: tuple[Tier, ...] = tuple(Tier)
    """Those accepted; candidates are ranked in the loosest."""
    seed: int = 0
    """For strategies that draw: derive each draw from seed, task digest, node and purpose."""
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def tier(self) -> Tier:
        """The loosest tier accepted: everything correct counts there."""
        return max(self.tiers, key=lambda tier: tier.rank, default=Tier.HALF)
