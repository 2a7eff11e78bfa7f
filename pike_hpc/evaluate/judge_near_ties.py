"""Near ties: whole numbers about which programs that are equally right disagree.

Which of two nearly equal scores `argmax` or `topk` takes hangs on the order of a sum. The
reference itself tells which numbers these are: inputs that differ by little more than float32
rounds by change them.
"""

from __future__ import annotations

import functools

import torch

from pike_hpc.evaluate.correctness import UNEQUAL
from pike_hpc.evaluate.judge_agreement import NEAR_TIES
from pike_hpc.evaluate.judge_exam import Exam
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_range import checks_strictly
from pike_hpc.evaluate.judge_truth import Truth
from pike_hpc.evaluate.layout import Slot

NEARBY = 1e-6
"""Inputs are moved by such a part of themselves, some ten times what float32 rounds by: more would
change numbers that rounding leaves alone, and then none is taken for a near tie."""
MOVABLE = frozenset({"float32", "float64", "complex64", "complex128"})
"""Other numbers have no neighbours so near."""
DRAWS, FEWEST, TIME_S = 16, 8, 30.0
"""How often an input is moved, each time another way, for so many seconds an output where the
reference is slow. What falls either way equally often falls the same way in all of them once in
65,000 times, in the fewest once in 256."""


class NearTies:
    """Tells near ties from wrong numbers in the answers to one exam.

    If more than NEAR_TIES numbers of an answer differ, they are none. Nor are any where a nearby
    input changes more than so many, or than UNEQUAL of those that move: more than rounding decides
    these, such as whole numbers kept as floats that are rounded down.
    """

    def __init__(self, truth: Truth, exam: Exam) -> None:
        self._truth, self._exam = truth, exam

    @functools.cached_property
    def _draws(self) -> int:
        """How often an input is moved: 0 where none can be, or one may end the judge's process."""
        slots: tuple[Slot, ...] = self._truth.frame.input_slots
        # A large model has left the device by then.
        if self._truth.large or not any(slot.dtype in MOVABLE for slot in slots):
            return 0
        on_gpu = self._truth.device.type == "cuda"  # elsewhere what is checked only raises
        if on_gpu and checks_strictly(self._truth, self._truth.range_seeds[0]):
            return 0
        answer_s = self._exam.cost_s / max(1, len(self._exam.inputs))
        return max(FEWEST, min(DRAWS, int(TIME_S / max(answer_s, 1e-6))))

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
        if not 0 < int(different.sum()) <= NEAR_TIES:
            return different
        right = self._exam.truths[call][leaf].to(answer.device)
        most = max(NEAR_TIES, UNEQUAL * self._exam.scales[leaf].moves * right.numel())
        for draw in range(self._draws):
            try:
                answers = self._truth.answers_to(self._nearby(call, draw))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever a forward does that takes no such numbers
                break
            near = answers[leaf].to(answer.device)
            if int((near != right).sum()) <= most:
                different = different & (answer != near)
            if not bool(different.any()):
                break
        return different

    def _nearby(self, call: int, draw: int) -> torch.Tensor:
        """The bytes of an input a little off this one, none of its numbers beyond the others."""
        generator = torch.Generator().manual_seed(draw)
        packed = self._exam.inputs[call].clone()
        slots = self._truth.frame.input_slots
        for slot, view in zip(slots, views(slots, packed), strict=True):
            if slot.dtype in MOVABLE and slot.count:
                # So that what is 1 at most, or an index, stays within its range.
                numbers = torch.view_as_real(view) if view.is_complex() else view
                low, high = numbers.aminmax()
                noise = torch.randn(numbers.shape, generator=generator, dtype=numbers.dtype)
                numbers.mul_(1 + NEARBY * noise).clamp_(low, high)
        return packed
