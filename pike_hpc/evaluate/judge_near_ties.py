"""Near ties: whole numbers about which programs that are equally right disagree.

Which of two nearly equal scores `argmax` or `topk` takes hangs on the order of a sum. The
reference itself tells which numbers these are: inputs that differ by less than float32 shows
change them.
"""

from __future__ import annotations

import torch

from pike_hpc.evaluate.correctness import FLOORS, UNEQUAL
from pike_hpc.evaluate.judge_exam import Exam
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_truth import Truth
from pike_hpc.evaluate.layout import Slot
from pike_hpc.records import Tier

NEARBY = FLOORS[Tier.FP32]
"""Inputs are moved by such a part of themselves: answers move by about what tier fp32 allows."""
MOVABLE = frozenset({"float32", "float64", "complex64", "complex128"})
"""Other numbers have no neighbours so near."""
MOST = 8
"""More numbers of an answer are no near ties, or more than UNEQUAL of those that move: what
nearby inputs change beyond that is not decided by rounding, such as whole numbers kept as floats
that are rounded down."""
DRAWS, FEWEST, TIME_S = 16, 2, 5.0
"""How often inputs are moved, each time another way: a near tie stays the same in one of 65,000
such series. Fewer where the reference is slow."""


class NearTies:
    """What the answers to one exam may differ in."""

    def __init__(self, truth: Truth, exam: Exam) -> None:
        self._truth, self._exam = truth, exam
        slots: tuple[Slot, ...] = truth.frame.input_slots
        movable = any(slot.dtype in MOVABLE for slot in slots)
        answer_s = exam.cost_s / max(1, len(exam.inputs))
        draws = max(FEWEST, min(DRAWS, int(TIME_S / max(answer_s, 1e-6))))
        # A large model has left the device by then.
        self._draws = draws if movable and not truth.large else 0

    def decided(
        self, call: int, leaf: int, answer: torch.Tensor, different: torch.Tensor
    ) -> torch.Tensor:
        """The numbers that are no near ties, of those that differ.

        Args:
            call: which of the exam's inputs it is.
            leaf: which output.
            answer: what it was answered.
            different: bool, where that is not what the reference has.
        """
        if int(different.sum()) > MOST:
            return different
        right = self._exam.truths[call][leaf].to(answer.device)
        most = max(MOST, UNEQUAL * self._exam.scales[leaf].moves * right.numel())
        for draw in range(self._draws):
            near = self._truth.answers_to(self._nearby(call, draw))[leaf].to(answer.device)
            if int((near != right).sum()) <= most:
                different = different & (answer != near)
            if not bool(different.any()):
                break
        return different

    def _nearby(self, call: int, draw: int) -> torch.Tensor:
        """The bytes of an input a little off this one."""
        generator = torch.Generator().manual_seed(draw)
        packed = self._exam.inputs[call].clone()
        slots = self._truth.frame.input_slots
        for slot, view in zip(slots, views(slots, packed), strict=True):
            if slot.dtype in MOVABLE:
                noise = torch.randn(view.shape, generator=generator, dtype=view.dtype)
                view.mul_(1 + NEARBY * noise)
        return packed
