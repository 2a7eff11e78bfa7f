"""Spot checks: a few of the timed calls are held against float64 as well.

What is timed is compared with the reference's runner, whose own error is forgiven: where it ships
TF32 or bfloat16 that is far more than a strict tier allows. A candidate can count its calls and be
exact while it is examined only. So of the calls that count some are drawn, when they are over, and
the judge computes what their answers should have been. It does so, too, for calls in doubt: those
that miss the reference's answer by so little that the reference may be what is off.
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
DOUBTS = 4
"""Times as many calls may be in doubt as are drawn, with as many times the room and time. They are
no sample: the next one is refused."""
FREE_PART = 0.25
"""Of a GPU's free memory they take so much at most, and lie on the host otherwise."""


@dataclass(frozen=True, slots=True)
class Spotted:
    """One timed call."""

    packed: torch.Tensor
    """The bytes of its input."""
    answer: torch.Tensor
    """The bytes of what the candidate answered, a copy."""


def most_of(pair_bytes: int, answer_s: float, times: int = 1) -> int:
    """How many calls are kept.

    Args:
        pair_bytes: of an input and its answer.
        answer_s: what the judge's own answer to one takes.
        times: of MOST, ROOM_BYTES and TIME_S.
    """
    room, time = times * ROOM_BYTES // max(1, pair_bytes), int(times * TIME_S / max(1e-6, answer_s))
    return max(FEWEST, min(times * MOST, room, time))


class SpotChecks:
    """Draws some of the calls that are offered, each with the same chance; keeps all in doubt."""

    def __init__(
        self, most: int, doubts: int = 0, below: Callable[[int], int] = secrets.randbelow
    ) -> None:
        """`most` calls are drawn, `doubts` may be in doubt; `below(n)` draws from 0 to n - 1."""
        self._most, self._doubts, self._below = most, doubts, below
        self._drawn: list[Spotted] = []
        self._in_doubt: list[Spotted] = []
        self._offered = 0

    @property
    def kept(self) -> Sequence[Spotted]:
        """What is looked at: first what is in doubt, of blocks that don't count as well."""
        return [*self._in_doubt, *self._drawn]

    @property
    def doubted(self) -> int:
        """How many are in doubt."""
        return len(self._in_doubt)

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
        """A call that must be looked at; False where there are as many as can be.

        The same answer to the same input, as a pilot asks it again and again, is one.
        """
        if any(d.packed is packed and torch.equal(d.answer, answer) for d in self._in_doubt):
            return True
        if len(self._in_doubt) >= self._doubts:
            return False
        self._in_doubt.append(self._copied(packed, answer))
        return True

    def _copied(self, packed: torch.Tensor, answer: torch.Tensor) -> Spotted:
        size = (self._most + self._doubts) * (packed.numel() + answer.numel())
        if answer.is_cuda and size > FREE_PART * torch.cuda.mem_get_info(answer.device)[0]:
            return Spotted(packed.cpu(), answer.cpu())
        return Spotted(packed, answer.clone())
