"""What the answers of a task's reference tell: how much they move, how far its own are off.

Two public inputs, answered in float64 and as the reference ships. Everything that is said of a
wrong answer in an admission is measured against this.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from pike_hpc.evaluate.correctness import (
    CAP,
    LOCAL_K,
    Grain,
    compare,
    grain_of,
    limit,
    moving,
    rms,
    signal_of,
)
from pike_hpc.evaluate.judge_frame import is_float
from pike_hpc.evaluate.judge_mutants import Edit
from pike_hpc.evaluate.judge_truth import FLOAT64, Truth
from pike_hpc.evaluate.layout import Slot, buffer_bytes
from pike_hpc.records import Tier

ADMISSION_SEEDS = (201, 202)
"""Public: nothing is judged on these inputs, and the same task is admitted the same way twice."""
FEW = 8
"""Numbers of an output from which on two inputs tell how much it moves: of fewer, as a loss has,
two answers may be alike by chance."""
MORE_SEEDS = (203, 204, 205, 206, 207, 208)
MORE_BYTES = 1 << 26
"""Inputs asked for the sake of such outputs, and how large they may be: a CPU draws them."""
CHEAP_CALL_S = 0.1
"""Of a reference faster than this more is asked: bfloat16 on a CPU, however slow a CPU is at it,
and much larger inputs."""
REPEATS = 1e-4, 1e-6
"""How nearly a reference must repeat itself, relatively and absolutely."""
NOTHING = 1e-12
"""Of the signal: what float64 is off by where an answer does not depend on what was taken away."""

OTHERS_PART = 0.1
"""Of seconds in which this thread did nothing."""

Leaves = Sequence[torch.Tensor]


def own_s() -> float:
    """Seconds of this thread, and a tenth of all that pass: for differences.

    What else a CPU does is no part of what a call takes, nor how long a lane is frozen while others
    are timed. Where a forward has threads of its own, or a GPU is waited for in sleep, a tenth is
    all that is seen of it.
    """
    return time.thread_time() + OTHERS_PART * time.monotonic()


Numbered = Leaves | Mapping[int, torch.Tensor]
"""Leaves by their numbers, perhaps not all."""


class Refusal(Exception):
    """The task can't be judged on; the message says why."""


def scale(answers: Leaves) -> float:
    """S of a leaf; its RMS where it doesn't depend on the input at all, such as a mask."""
    return signal_of(answers) or rms(answers[0]) or 1.0


def alike(answer: Leaves, other: Leaves) -> bool:
    """Whether two answers are the same but for rounding."""
    return all(a.allclose(b, 1e-6, 0.0) for a, b in zip(answer, other, strict=True))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of bfloat16, in the type they had, none of them infinite.

    So a mask of float32's lowest number becomes bfloat16's. Whole numbers stay as they are.
    """
    if values.is_complex():
        return torch.view_as_complex(rounded(torch.view_as_real(values)))
    if not values.is_floating_point():
        return values
    ends, own = torch.finfo(torch.bfloat16), torch.finfo(values.dtype)
    coarse = values.bfloat16().clamp(ends.min, ends.max).to(values.dtype)
    return coarse.clamp(own.min, own.max)


class Signal:
    """The reference's answers to the admission's inputs, and what they are off by."""

    def __init__(self, truth: Truth) -> None:
        """Run the reference. Raises Refusal."""
        self._truth = truth
        slots: tuple[Slot, ...] = truth.frame.output_slots
        self.floats = [i for i, slot in enumerate(slots) if is_float(slot)]
        self.native = [truth.natively(s) for s in ADMISSION_SEEDS]
        """As it ships, per input."""
        self._grains: dict[int, Grain | None] = {}
        self.call_s = math.inf
        """What a call takes that is not the first, on inputs that are drawn already."""
        self._demand_repeatable()
        native = truth.precision != FLOAT64
        self._hold(self.native if native else [truth.answers(s) for s in ADMISSION_SEEDS])
        self.noise = [
            max(self.error(n, w, i) for n, w in zip(self.native, self.wide, strict=True))
            if i in self.floats
            else 0.0
            for i in range(len(slots))
        ]
        """E of the reference as it ships, per output leaf."""
        coarse = truth.native != "float32"
        if coarse and not native and max(self.noise, default=0.0) > CAP / 2:
            # The noise stays what it was: it says why, and that the limit is the cap.
            truth.hold_natively()
            self._hold(self.native)
        self.apart: Leaves = self.wide[1]
        """What the reference answers to another input, no nearer to the first by chance."""
        self._few: Sequence[int] = ()
        few = [i for i in self.floats if slots[i].count < FEW]
        small = buffer_bytes(truth.frame.input_slots) <= MORE_BYTES
        if few and small and self.cheap and not truth.legacy:
            self._ask_more(few)

    @property
    def cheap(self) -> bool:
        """Whether a few more calls of the reference are affordable, also slow ones."""
        return self.call_s < CHEAP_CALL_S

    def known(self, leaf: int) -> float:
        """S of an output of few numbers, which no exam's few inputs tell; 0 of any other."""
        return self._signals[leaf] if leaf in self._few else 0.0

    def _ask_more(self, few: Sequence[int]) -> None:
        """Learn signal and noise of these outputs from more inputs. Raises Refusal."""

        def small(answer: Leaves) -> dict[int, torch.Tensor]:
            return {i: answer[i] for i in few}  # beside a loss there may be gigabytes

        truth, native, wide = self._truth, [*map(small, self.native)], [*map(small, self.wide)]
        for seed in MORE_SEEDS:
            native.append(small(truth.natively(seed)))
            wide.append(small(truth.answers(seed)))
        self._few, self.apart = few, [*self.apart]
        for i in few:
            if not all(bool(answer[i].isfinite().all()) for answer in (*native, *wide)):
                raise Refusal("the reference gives values that are not finite")
            self._signals[i] = scale([w[i] for w in wide])
            errors = [self.error(n, w, i) for n, w in zip(native, wide, strict=True)]
            self.noise[i] = max(self.noise[i], *errors)
            far = [rms(w[i] - wide[0][i]) for w in wide]
            self.apart[i] = wide[far.index(statistics.median_high(far[1:]))][i]

    def error(self, answer: Numbered, truth: Numbered, leaf: int) -> float:
        """E of one output of an answer."""
        there = truth[leaf]
        return compare(answer[leaf].to(there.device), there, self._signals[leaf]).error

    def closely(self, answer: Leaves, leaf: int) -> float:
        """E of one output of an answer to the first input, or what its stretches make of it.

        A candidate is held to its stretches, too: an output may grow by orders of magnitude along
        a dimension, and hide in E that most of it is wrong.
        """
        truth = self.wide[0][leaf]
        found = compare(
            answer[leaf].to(truth.device), truth, self._signals[leaf], self._grain(leaf)
        )
        return max(found.error, found.local / LOCAL_K)

    def moves_with(self, edit: Edit, answer: Leaves) -> bool:
        """Whether the answer to the first input depends on what an edit takes away.

        A bias before a norm changes how float32 rounds, and nothing else: where `answer`, the
        edited reference's as it ships, is that near, float64 tells.
        """
        truth, there = self._truth, self.wide[0]
        slots = truth.frame.output_slots
        ends = {i: limit(Tier.FP32, self.noise[i], slots[i].count) for i in self.floats}
        near = all(
            self.error(answer, there, i) <= end and self.closely(answer, i) <= end
            for i, end in ends.items()
        )
        if truth.precision != FLOAT64 or not self.floats or not near:
            return True
        try:
            wide = truth.edited(edit, ADMISSION_SEEDS[0])
        except Exception:  # no copy, or no room for one
            return True
        whole = set(range(len(wide))) - set(self.floats)
        return any(self.closely(wide, i) > NOTHING for i in self.floats) or any(
            not torch.equal(wide[i].to(there[i].device), there[i]) for i in whole
        )

    def _grain(self, leaf: int) -> Grain | None:
        if self._truth.precision != FLOAT64:
            return None
        if leaf not in self._grains:
            there = self.wide[0][leaf].device
            truths, native = ([a[leaf].to(there) for a in x] for x in (self.wide, self.native))
            signal, error = self._signals[leaf], self.noise[leaf]
            self._grains[leaf] = grain_of(truths, native, signal, error)
        return self._grains[leaf]

    def ratio(self, leaf: int) -> float:
        """Signal over RMS; a leaf that never moves does not count against the task."""
        answers = [w[leaf] for w in self.wide]
        signal, size = self.known(leaf) or signal_of(answers), rms(answers[0])
        return signal / size if signal > 0 and size > 0 else 1.0

    def half_noise(self) -> dict[int, float]:
        """E of the reference under bfloat16 autocast, by leaf; of none where it does not run so."""
        try:
            with torch.autocast(self._truth.device.type, dtype=torch.bfloat16):
                answer = self._truth.natively(ADMISSION_SEEDS[0])
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a forward does that knows no bfloat16
            return {}
        return self._measured(answer)

    def rounded_noise(self) -> dict[int, float]:
        """E of the reference's answer rounded to bfloat16, and no more.

        Autocast leaves losses, norms, sums along a dimension and all that is done element by
        element in float32: nobody whose answer is in bfloat16 is nearer than this. Of inputs that
        are rounded it tells nothing: they may leave what the reference is made for.
        """
        return self._measured([rounded(t) for t in self.native[0]])

    def tf32_noise(self) -> dict[int, float]:
        """E of the reference with TF32 in convolutions and products; CUDA alone has it."""
        if self._truth.device.type != "cuda":
            return {}
        matmul = torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, True
        try:
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
                answer = self._truth.natively(ADMISSION_SEEDS[0])
        finally:
            matmul.allow_tf32 = before
        return self._measured(answer)

    def _measured(self, answer: Leaves) -> dict[int, float]:
        """E of an answer to the first input, by leaf; of none that overflows: no noise is that."""
        errors = {i: self.error(answer, self.wide[0], i) for i in self.floats}
        return {i: error for i, error in errors.items() if math.isfinite(error)}

    def _demand_repeatable(self) -> None:
        if self._repeats():
            return
        # Whatever the call in between left behind may be the reason: put it back.
        if self._truth.reset_between_calls():
            self.native = [self._truth.natively(s) for s in ADMISSION_SEEDS]
            if self._repeats():
                return
        raise Refusal("the reference gives two answers to one input")

    def _repeats(self) -> bool:
        sides = [[tuple(t.shape) for t in call] for call in self.native]
        if sides[0] != sides[1]:
            if not self._truth.resets:
                return False  # what the first call left may be the reason
            raise Refusal(f"the shape of the output depends on the input: {sides[0]}, {sides[1]}")
        if not all(bool(t.isfinite().all()) for call in self.native for t in call):
            raise Refusal("the reference gives values that are not finite")
        start = own_s()  # what was queued on a device has ended
        again = self._truth.natively(ADMISSION_SEEDS[0])
        pairs = zip(self.native[0], again, strict=True)
        same = all(a.allclose(b, *REPEATS) for a, b in pairs)
        self.call_s = own_s() - start
        return same

    def _hold(self, answers: Sequence[Leaves]) -> None:
        """Take these answers for true. Raises Refusal."""
        self.wide = answers
        if not all(bool(t.isfinite().all()) for call in answers for t in call):
            raise Refusal("the reference in float64 gives values that are not finite")
        same = all(torch.equal(a, b) for a, b in zip(answers[0], answers[1], strict=True))
        if same and not self._truth.legacy:
            first, second = (self._truth.pack(seed) for seed in ADMISSION_SEEDS)
            alike = torch.equal(first, second)
            why = ": get_inputs gives the same at every seed, draw it at random" if alike else ""
            raise Refusal(f"the output does not depend on the input{why}")
        whole = set(range(len(answers[0]))) - set(self.floats)
        self.moves = {i: moving([w[i] for w in answers]) for i in whole}
        """Of whole-number outputs: the part that changes with the input."""
        self._signals = [scale([w[i] for w in answers]) for i in range(len(answers[0]))]
