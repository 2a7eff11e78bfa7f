"""Shelf: large values of a task that lie in its journal and are read when somebody asks.

A search of thousands of programs looks at a few of them at a time. Their text and the whole of
their verdicts stay on disk; what was used last stays here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TypeVar

from pike_hpc.journal import Place

V = TypeVar("V")

_AT_HAND = 16
"""Values read last that are kept: the parents of a phase and what its repairs start from."""


class Shelf(MutableMapping[str, V]):
    """A mapping in the order in which keys came. One thread uses it."""

    def __init__(self, read: Callable[[Place], V]) -> None:
        """`read` finds the value at a place again."""
        self._read = read
        self._whole: dict[str, V] = {}
        self._places: dict[str, Place | None] = {}
        self._at_hand: dict[str, V] = {}

    @property
    def places(self) -> Mapping[str, Place | None]:
        """Where each value lies; None for one that nobody has put away."""
        return self._places

    def lie_at(self, places: Mapping[str, Place]) -> None:
        """More keys, and where the value of each lies."""
        self._places.update(places)

    def put_away(self, key: str, place: Place) -> None:
        """A value that was just set lies at `place`, too: it need not be kept here.

        Nothing where none was set since it was put away.
        """
        if key in self._whole:
            self._places[key] = place
            self._keep(key, self._whole.pop(key))

    def __getitem__(self, key: str) -> V:
        place = self._places[key]
        if place is None:
            return self._whole[key]
        value = self._at_hand.pop(key) if key in self._at_hand else self._read(place)
        self._keep(key, value)
        return value

    def _keep(self, key: str, value: V) -> None:
        self._at_hand[key] = value
        if len(self._at_hand) > _AT_HAND:
            del self._at_hand[next(iter(self._at_hand))]

    def __setitem__(self, key: str, value: V) -> None:
        self._places[key] = None
        self._whole[key] = value
        self._at_hand.pop(key, None)

    def __delitem__(self, key: str) -> None:
        del self._places[key]
        self._whole.pop(key, None)
        self._at_hand.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
