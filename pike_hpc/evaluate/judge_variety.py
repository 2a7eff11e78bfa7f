"""Whether a task has so few inputs that a program may keep all answers.

"Never seen before" is what timed inputs are meant to be: of a task whose input is one of a few
tokens a table of answers is right, as fast as a look, and nothing that anybody wants.
"""

from __future__ import annotations

from pike_hpc.evaluate.judge_truth import Truth

DRAWN, MOST = 256, 8
"""Inputs that are drawn, and how many may be another's: of 4,000 that are all alike likely some
eight are, and a timing asks for a few thousand; of 32,000 more than eight are in one of 100,000."""
SMALL_BYTES = 1 << 16
"""Larger inputs are taken to differ."""
SEED = 203
"""Public, as those of an admission are."""


def repeated(truth: Truth) -> int:
    """How many of DRAWN inputs are another's; 0 for large ones."""
    if sum(slot.size_bytes for slot in truth.frame.input_slots) > SMALL_BYTES:
        return 0
    drawn = {bytes(packed.cpu().numpy()) for packed in truth.pack_fresh(SEED, DRAWN)}
    return DRAWN - len(drawn)
