"""Weights that a runner reads, and the probe: do a candidate's answers follow its weights?

All weights change at once, then some go back and then the others. A program that folds its
weights, and does it again when it sees one of them change, answers two of these steps right: each
weight stays what it was in one of the three, while others change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.runner import MIXTURE_BITS, is_other

LEAST_SHARE, DRAWS = 0.25, 64
"""Part of what changes that either side of a mixture should hold, and how often that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One set of weights, in memory that every runner of the task can read and none can write."""

    constructor_seed: int
    buffer: SharedBuffer
    """Laid out by the frame's weight slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Some of the judging weights and some of the other ones."""

    bits: int
    """Which are which: see `Source.MIXED`."""
    truth: list[torch.Tensor]
    """The float64 answer to the probe's input under them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One input under other weights."""

    weights: Weights
    packed: torch.Tensor
    truth: list[torch.Tensor]
    """The float64 answer under these weights ..."""
    stale: list[torch.Tensor]
    """... and under the judging ones, which a program that kept them would give."""
    mixture: Mixture | None
    """None where no living model is given weights, or all weights are one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Weights that change together, since they share memory or a bit."""

    bits: frozenset[int]
    elements: int
    """Of the tensors that change at all."""


def groups_of(
    held: Sequence[torch.Tensor], own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]
) -> list[Group]:
    """The groups in which anything changes.

    Whole numbers change together: of an order and its inverse, or of rows and columns, one makes no
    sense beside another's other.

    Args:
        held: the tensors of a model's state, of which some may share memory.
        own: what one set of weights has for them.
        other: what the other has.
    """
    storages = [t.untyped_storage().data_ptr() if t.numel() else -i for i, t in enumerate(held)]
    changed = [0 if torch.equal(a, b) else a.numel() for a, b in zip(own, other, strict=True)]
    together: dict[int, set[int]] = {}
    for i, storage in enumerate(storages):
        together.setdefault(storage, set()).add(i % MIXTURE_BITS)
    found: list[set[int]] = []
    whole = {
        i % MIXTURE_BITS
        for i, tensor in enumerate(held)
        if changed[i] and not tensor.is_floating_point() and not tensor.is_complex()
    }
    for bits in (*together.values(), whole):
        touched = [group for group in found if group & bits]
        found = [group for group in found if not group & bits]
        found.append(bits.union(*touched))
    groups = [
        Group(
            bits=frozenset(bits),
            elements=sum(n for i, n in enumerate(changed) if i % MIXTURE_BITS in bits),
        )
        for bits in found
    ]
    return [group for group in groups if group.elements]


def draw_bits(groups: Sequence[Group], seed: int) -> int | None:
    """A coin for each group, drawn again until both sides are large; None where one is empty.

    What is on the smaller side must show in the answers, and most elements lie in few tensors.
    """
    coins, total = random.Random(seed), sum(group.elements for group in groups)
    best, most = None, 0
    for _ in range(DRAWS):
        chosen = [group for group in groups if coins.getrandbits(1)]
        held = sum(group.elements for group in chosen)
        if min(held, total - held) > most:
            best = sum(1 << bit for group in chosen for bit in group.bits)
            most = min(held, total - held)
        if most >= LEAST_SHARE * total:
            break
    return best


def mixed(
    bits: int, own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The weights of a mixture, as a runner picks them."""
    return [pair[is_other(bits, i)] for i, pair in enumerate(zip(own, other, strict=True))]
