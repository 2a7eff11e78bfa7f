"""Ranking: candidates by speed and by the idea that each descends from."""

from __future__ import annotations

import bisect

from pike_hpc.records import Tier
from pike_hpc.search.view import TaskView


class Ranking:
    """Grows as a search's phases are walked through."""

    def __init__(self, tier: Tier) -> None:
        """Candidates that passed at `tier` or stricter are ranked."""
        self._tier = tier
        self._places: list[tuple[float, str]] = []
        self.lineage: dict[str, str] = {}
        """By candidate id: the root that it was first made from."""

    def copy(self) -> Ranking:
        """One that grows by itself."""
        other = Ranking(self._tier)
        other._places, other.lineage = self._places.copy(), self.lineage.copy()
        return other

    def add(self, view: TaskView, candidate_id: str, root: str) -> None:
        """One more candidate, with its verdict of now; a second time it changes nothing."""
        if candidate_id not in self.lineage:
            self.lineage[candidate_id] = root
            place = view.place(self._tier, candidate_id)
            if place is not None:
                bisect.insort(self._places, place)

    def best(self, count: int) -> list[str]:
        """The fastest of each lineage, then the others by speed; at most `count`."""
        first: dict[str, str] = {}
        others: list[str] = []
        for _, candidate_id in self._places:
            if len(first) == count:
                break
            if first.setdefault(self.lineage[candidate_id], candidate_id) != candidate_id:
                others.append(candidate_id)
        return [*first.values(), *others][:count]
