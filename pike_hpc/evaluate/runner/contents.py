"""What lists, tuples and dicts that a model keeps hold, to any depth, and how it is put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CONTAINERS = (list, tuple, dict)
NUMBERS = (int, float)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or those in a container, each once; there parameters are a module's, too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in CONTAINERS:
        found = {id(v): v for c in _within(value) for v in _entries(c).values()}
        for one in found.values():
            if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter):
                yield one


class Contents:
    """What a container held when it was looked at."""

    def __init__(self, container: Any, *, exact: bool) -> None:
        """Remember it; numbers in tensors are the caller's to keep.

        Args:
            container: a list, tuple or dict.
            exact: what is added later goes, and everything comes back. Else only tensors and
                numbers do: None may say that something is not made yet, and what was made stays.
        """
        self._exact = exact
        self._parts = [(c, self._kept(c)) for c in _within(container) if type(c) is not tuple]

    def restore(self) -> None:
        """Put it back."""
        for container, kept in self._parts:
            if not self._exact:
                there = _entries(container)
                for key in kept.keys() & there.keys():
                    container[key] = kept[key]
            elif isinstance(container, list):
                container[:] = kept.values()
            else:
                container.clear()
                container.update(kept)

    def _kept(self, container: Any) -> dict[Any, Any]:
        entries = _entries(container)
        if self._exact:
            return entries
        return {
            key: value
            for key, value in entries.items()
            if isinstance(value, torch.Tensor) or type(value) in (*CONTAINERS, *NUMBERS)
        }


def _entries(container: Any) -> dict[Any, Any]:
    return dict(container if isinstance(container, dict) else enumerate(container))


def _within(container: Any) -> Iterator[Any]:
    """The container and those in it, each once."""
    seen, waiting = {id(container)}, [container]
    while waiting:
        found = waiting.pop()
        yield found
        for value in _entries(found).values():
            if type(value) in CONTAINERS and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)
