"""Spot checks: a few timed inputs whose float64 answers are known.

What is timed is compared with the reference's runner, whose own error is forgiven: where it ships
TF32 or bfloat16 that is far more than a strict tier allows. A candidate can count its calls and be
exact while it is examined only. So some blocks hold one input more that the truth is known of,
drawn like all others and asked once: whoever is coarse in most of its timed calls meets one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.judge_truth import Secrets, Truth
from pike_hpc.evaluate.layout import buffer_bytes

STRETCHES = (1, 3, 5, 10, 20, 40, 80)
"""Blocks between which a stretch lies; one block of each, secretly chosen, holds a check. They
grow, since nobody knows beforehand how many blocks there will be. The first block has none: it may
show that more calls belong into a block, and timing begins anew then. Where three of five blocks
are coarse the two checks miss them in a quarter of all cases at most, and in one of 16 when the
best of a search are timed again."""
LARGE_BYTES, FEW = 1 << 26, 3
"""From so many bytes of input and output on so many checks are prepared: they stay on the host."""


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """An input and its answer, on the host."""

    packed: torch.Tensor
    """The bytes of the input buffer."""
    truths: list[torch.Tensor]
    """By output leaf, in float32 where the truth is wider: its rounding is no part of any limit."""


@dataclass(frozen=True, slots=True)
class Spotted:
    """What a candidate answered to one while it was timed."""

    check: SpotCheck
    answer: torch.Tensor
    """The bytes of its output buffer."""


def draw_checks(truth: Truth, drawn: Secrets) -> tuple[SpotCheck, ...]:
    """Checks for one timing; none for variant `legacy`, whose rule knows no tiers."""
    if truth.legacy:
        return ()
    frame = truth.frame
    size = buffer_bytes(frame.input_slots) + buffer_bytes(frame.output_slots)
    checks = []
    for number in range(FEW if size >= LARGE_BYTES else len(STRETCHES) - 1):
        packed = truth.pack_fresh(drawn.seed("check", number), 1)[0].cpu()
        truths = [_narrowed(leaf) for leaf in truth.answers_to(packed)]
        checks.append(SpotCheck(packed, truths))
    return tuple(checks)


def _narrowed(leaf: torch.Tensor) -> torch.Tensor:
    return (leaf.float() if leaf.dtype == torch.float64 else leaf).cpu()


class SpotChecks:
    """Which block of a timing holds which check."""

    def __init__(
        self, checks: Sequence[SpotCheck], below: Callable[[int], int] = secrets.randbelow
    ) -> None:
        """`below(n)` draws from 0 to n - 1."""
        self._left, self._below = list(checks), below
        self._asks = bool(checks)
        self.begin()

    def begin(self) -> None:
        """Blocks are counted from 0 again."""
        self._stretch = 0
        self._at = self._drawn()

    def due(self, block: int) -> SpotCheck | None:
        """What that block is to hold, if anything; never the same twice."""
        return self._left.pop() if block == self._at and self._left else None

    def answered(self) -> None:
        """What was due was answered undisturbed by the candidate: the next stretch has one, too."""
        self._stretch += 1
        self._at = self._drawn()

    @property
    def missed(self) -> bool:
        """Whether there were some, and none was answered since it began."""
        return self._asks and not self._stretch

    def _drawn(self) -> int | None:
        if self._stretch + 1 >= len(STRETCHES):
            return None
        start, end = STRETCHES[self._stretch : self._stretch + 2]
        return start + self._below(end - start)
