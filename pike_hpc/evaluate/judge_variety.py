"""Whether a task has so few inputs that a program may keep all answers.

"Never seen before" is what timed inputs are meant to be: of a task whose input is one of a few
tokens a table of answers is right, as fast as a look, and nothing that anybody wants.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pike_hpc.evaluate.judge_truth import Truth

DRAWN, MOST = 256, 8
"""Inputs that are drawn, and how many may be another's: of 4,000 that are all alike likely some
eight are, and a timing asks for a few thousand; of 32,000 more than eight are in one of 100,000."""
BUDGET_S, AT_ONCE = 10.0, 32
"""After so long fewer must do: some inputs are made by a model of their own."""
SMALL_BYTES = 1 << 16
"""Larger inputs are taken to differ."""
SEED = 203
"""Public, as those of an admission are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variety:
    """How many inputs were drawn, and how many of them are another's."""

    drawn: int
    repeated: int

    @property
    def is_small(self) -> bool:
        """Whether a program may keep all answers: pairs grow by the square of what is drawn."""
        return self.repeated > MOST * (self.drawn / DRAWN) ** 2


def variety(truth: Truth, clock: Callable[[], float] = time.monotonic) -> Variety:
    """Of a task's inputs; none are drawn of large ones."""
    if sum(slot.size_bytes for slot in truth.frame.input_slots) > SMALL_BYTES:
        return Variety(drawn=0, repeated=0)
    end_s, drawn = clock() + BUDGET_S, 0
    seen: set[bytes] = set()
    while drawn < DRAWN and (not drawn or clock() < end_s):
        fresh = truth.pack_fresh(SEED + drawn, AT_ONCE)
        seen.update(bytes(packed.cpu().numpy()) for packed in fresh)
        drawn += AT_ONCE
    return Variety(drawn=drawn, repeated=drawn - len(seen))
