"""Weights for tensors that belong to no layer of torch and that a constructor has `nn.init` draw.

Who writes a layer of his own draws its weight as torch does, and may make something else of it
before anybody can load one. So it is given the first weight of its shape that nobody was given yet,
of those in the reference's layers. A guess, like all that goes by order: where the tensor is still
there, it is placed by its name or shape as if it had been given nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from .places import Slot, is_exact, is_lazy

DRAWING = frozenset(
    {
        *("kaiming_normal_", "kaiming_uniform_", "normal_", "orthogonal_", "sparse_"),
        *("trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_"),
    }
)
"""Functions of `torch.nn.init` that draw: zeros and ones may be for a workspace."""

HEAD = 64
"""Numbers by which most weights are told apart."""


class Drawn:
    """Which weights went to tensors that a constructor drew."""

    def __init__(
        self,
        slots: Sequence[Slot],
        layers: Sequence[tuple[str, Sequence[int]]],
        weights: Sequence[torch.Tensor],
    ) -> None:
        """Nothing is given yet; arguments are those of `Hands`."""
        self._slots, self._weights = slots, weights
        self._order = [i for _, own in layers for i in own if slots[i].is_parameter]
        self._given: set[int] = set()

    def take(self, tensor: torch.Tensor, gone: Collection[int]) -> int | None:
        """The weight for a tensor that was just drawn; None where none is like it.

        Args:
            tensor: not one that was given a weight before.
            gone: weights that were given.
        """
        if not _is_whole(tensor):
            return None
        waiting = (i for i in self._order if i not in gone and is_exact(tensor, self._slots[i]))
        index = next(waiting, None)
        if index is not None:
            self._given.add(index)
        return index

    def __contains__(self, index: int) -> bool:
        return index in self._given

    def kept(self, own: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """What of a program's state holds the numbers of such a weight: nothing was made of it."""
        return {n: i for n, t in own.items() if (i := self._held_by(t)) is not None}

    def _held_by(self, tensor: torch.Tensor) -> int | None:
        if is_lazy(tensor) or not self._given:
            return None
        first = head(tensor)
        for index in sorted(self._given):
            weight = self._weights[index]
            # The head first: a weight on the host is not to cross to a GPU for each layer like it.
            if (
                is_exact(tensor, self._slots[index])
                and torch.equal(first, head(weight).to(first))
                and torch.equal(tensor.detach(), weight.to(tensor))
            ):
                return index
        return None


def head(tensor: torch.Tensor) -> torch.Tensor:
    """A few of its numbers, on the host."""
    return tensor.detach().flatten()[:HEAD].cpu()


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether it is all of its memory: a part of something else is no weight."""
    if is_lazy(tensor) or tensor.is_meta or not tensor.numel() or not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes
