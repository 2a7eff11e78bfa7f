"""Spot checks: a few of the timed calls are held against float64 as well.

What is timed is compared with the reference's runner, whose own error is forgiven: where it ships
TF32 or bfloat16 that is far more than a strict tier allows. A candidate can count its calls and be
exact while it is examined only. So of the calls that count some are drawn, when they are over, and
the judge computes what their answers should have been. It does so for each that missed the
reference by so little that the reference may be what is off.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

MOST, FEWEST, ROOM_BYTES, TIME_S = 8, 2, 1 << 28, 2.0
"""Calls that are looked at: as many as have room with their inputs and answers, and time to be
answered in float64. Eight show all but one in ten candidates that are coarse in a quarter of their
calls, and of the best, which are timed again, all but one in a hundred; seven in ten of those that
are so in 0.147 of theirs, from where on an estimate moves."""
OFFERS = 2
"""Calls of a block, at most, that may be drawn."""
FREE_PART = 0.25
"""Of a GPU's free memory they take so much at most, and lie on the host otherwise."""


@dataclass(frozen=True, slots=True)
class Spotted:
    """One timed call."""

    packed: torch.Tensor
    """The bytes of its input."""
    answer: torch.Tensor
    """The bytes of what the candidate answered, a copy."""


def most_of(pair_bytes: int, answer_s: float) -> int:
    """How many calls are kept.

    Args:
        pair_bytes: of an input and its answer.
        answer_s: what the judge's own answer to one takes.
    """
    room, time = ROOM_BYTES // max(1, pair_bytes), int(TIME_S / max(1e-6, answer_s))
    return max(FEWEST, min(MOST, room, time))


class SpotChecks:
    """Draws so many of the calls that are offered, each with the same chance."""

    def __init__(self, most: int, below: Callable[[int], int] = secrets.randbelow) -> None:
        """`below(n)` draws from 0 to n - 1; with `most` of 0 none is kept."""
        self._most, self._below = most, below
        self._drawn: list[Spotted] = []
        self._in_doubt: list[Spotted] = []
        self._offered = 0

    @property
    def kept(self) -> Sequence[Spotted]:
        """What is looked at: first what is in doubt, of blocks that don't count as well."""
        return [*self._in_doubt, *self._drawn]

    def begin(self) -> None:
        """Forget what was drawn: what was offered does not count."""
        self._drawn.clear()
        self._offered = 0

    def offer(self, packed: torch.Tensor, answer: torch.Tensor) -> None:
        """A call that counts. Its answer may be overwritten afterwards."""
        if not self._most:
            return
        self._offered += 1
        place = len(self._drawn) if self._offered <= self._most else self._below(self._offered)
        if place < self._most:
            self._drawn[place : place + 1] = [self._copied(packed, answer)]

    def doubt(self, packed: torch.Tensor, answer: torch.Tensor) -> bool:
        """A call that must be looked at; False where there are as many as can be already."""
        if len(self._in_doubt) >= self._most:
            return False
        self._in_doubt.append(self._copied(packed, answer))
        return True

    def _copied(self, packed: torch.Tensor, answer: torch.Tensor) -> Spotted:
        size = self._most * (packed.numel() + answer.numel())
        if answer.is_cuda and size > FREE_PART * torch.cuda.mem_get_info(answer.device)[0]:
            return Spotted(packed.cpu(), answer.cpu())
        return Spotted(packed, answer.clone())
