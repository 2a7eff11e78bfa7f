"""The exam of one task: secret inputs, their float64 answers, and what the reference answers.

Set in two steps, so that a large model's float64 answers are known and their memory is free before
the reference that is timed takes its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pike_hpc.evaluate.correctness import LeafScale, compare, grain_of, moving
from pike_hpc.evaluate.judge_admission import Yardstick
from pike_hpc.evaluate.judge_frame import is_float
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_range import WideRange
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_signal import scale
from pike_hpc.evaluate.judge_truth import FLOAT64, Truth
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.evaluate.runner import Code, Op, kept_answers
from pike_hpc.tasks.load import LEGACY_INPUT_SEED

SEEDS = 3
ASTRAY = 1 / 3
"""Of the loosest limit: a reference that is off by more while its state stays shows nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Secret inputs and what the judge knows of them."""

    inputs: tuple[torch.Tensor, ...]
    truths: tuple[list[torch.Tensor], ...]
    """Answers in the truth's precision, per input and leaf, where the truth keeps them."""
    scales: tuple[LeafScale, ...]
    wide: WideRange | None
    half_noise: float
    in_turn: tuple[list[torch.Tensor], ...]
    """What is right where state stays between these inputs; empty where none is put back."""
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """A paper that the reference's runner has answered."""

    inputs: tuple[torch.Tensor, ...]
    truths: tuple[list[torch.Tensor], ...]
    references: tuple[list[torch.Tensor], ...]
    scales: tuple[LeafScale, ...]
    reference_errors: tuple[float, ...]
    reference_locals: tuple[float, ...]
    """What single stretches of the reference's own answers are off by, at worst."""
    wide: WideRange | None
    """What is asked beyond the task's own inputs; the same in every exam."""
    half_noise: float
    """E of the reference in bfloat16; 0 where that is not known."""
    aliased: bool
    """Whether the reference's own answer to the first input changes when it is called again."""
    in_turn: tuple[list[torch.Tensor], ...]
    """Answers to the inputs one after another, where state stays; empty where nothing is put back
    between calls, or where the reference's own arithmetic goes astray by then."""
    second_errors: tuple[float, ...]
    """As `reference_errors`, of a second call that goes on from a first; else zeros."""
    cost_s: float


def set_paper(truth: Truth, yardstick: Yardstick, secrets: Secrets) -> Paper:
    """Draw inputs and answer them."""
    start = time.monotonic()
    seeds: tuple[int, ...] = (LEGACY_INPUT_SEED,) if truth.legacy else ()
    seeds += tuple(secrets.seed("exam", i) for i in range(SEEDS - len(seeds)))
    inputs, truths = [], []
    for seed in seeds:
        inputs.append(truth.pack(seed))
        truths.append([truth.keep(t) for t in truth.answers(seed)])
    scales = []
    for i, slot in enumerate(truth.frame.output_slots):
        moved = truth.paired([t[i] for t in truths])
        moves = 1.0 if is_float(slot) else moving(moved)
        signal = yardstick.signals[i] or scale(moved)
        scales.append(LeafScale(signal=signal, limits=yardstick.limits[i], moves=moves))
    in_turn = truth.answers_in_turn(seeds) if truth.resets and not truth.legacy else []
    cost_s = time.monotonic() - start
    return Paper(
        inputs=tuple(inputs),
        truths=tuple(truths),
        scales=tuple(scales),
        wide=yardstick.wide,
        half_noise=yardstick.half_noise,
        in_turn=tuple(in_turn),
        cost_s=cost_s,
    )


def answer(paper: Paper, truth: Truth, reference: RunnerLink) -> Exam:
    """Have the reference's runner answer the paper. Raises RunnerFailed."""
    start = time.monotonic()
    references, aliased = [], False
    for i, packed in enumerate(paper.inputs):
        references.append([truth.near(t) for t in call(reference, truth, packed)[0]])
        if i + 1 == kept_answers(buffer_bytes(truth.frame.output_slots)):
            aliased = has_changed(reference, truth, packed, references[0])
    scales, errors, locals_ = [], [], []
    for i, slot in enumerate(truth.frame.output_slots):
        scale, error, local = paper.scales[i], 0.0, 0.0
        if is_float(slot):
            truths, shipped = [t[i] for t in paper.truths], [r[i] for r in references]
            pairs = list(zip(shipped, truths, strict=True))
            found = [compare(r, t, scale.signal) for r, t in pairs]
            error = max(each.error for each in found)
            if truth.precision == FLOAT64 and not truth.legacy:
                scale = replace(scale, grain=grain_of(truths, shipped, scale.signal, error))
            scale = replace(scale, size=max(each.size for each in found))
            local = max(compare(r, t, scale.signal, scale.grain).local for r, t in pairs)
        scales.append(scale)
        errors.append(error)
        locals_.append(local)
    second_errors = _errors_in_turn(paper, truth, reference, scales)
    return Exam(
        inputs=paper.inputs,
        truths=paper.truths,
        references=tuple([truth.keep(t) for t in leaves] for leaves in references),
        scales=tuple(scales),
        reference_errors=tuple(errors),
        reference_locals=tuple(locals_),
        wide=paper.wide,
        half_noise=paper.half_noise,
        aliased=aliased,
        in_turn=() if second_errors is None else paper.in_turn,
        second_errors=second_errors or (0.0,) * len(scales),
        cost_s=paper.cost_s + time.monotonic() - start,
    )


def _errors_in_turn(
    paper: Paper, truth: Truth, reference: RunnerLink, scales: Sequence[LeafScale]
) -> tuple[float, ...] | None:
    """Of the reference's runner, whose state stays between inputs, in its second call.

    None where it does not stay right.
    """
    second = [0.0] * len(scales)
    for number, right in enumerate(paper.in_turn):
        try:
            found = call(reference, truth, paper.inputs[number], goes_on=number > 0)[0]
        except RunnerFailed as failed:
            if failed.kind != "code" or failed.code is Code.OUT_OF_MEMORY:
                raise
            return None
        for i, slot in enumerate(truth.frame.output_slots):
            if is_float(slot):
                off = compare(truth.near(found[i]), right[i], scales[i].signal).error
                if not off <= ASTRAY * max(scales[i].limits.values(), default=0.0):
                    return None
                second[i] = off if number == 1 else second[i]
    return tuple(second)


def call(
    link: RunnerLink, truth: Truth, packed: torch.Tensor, *, goes_on: bool = False
) -> tuple[list[torch.Tensor], torch.Tensor, float]:
    """One window: the answer's leaves, its raw bytes, its milliseconds. Raises RunnerFailed.

    With `goes_on` what the call before left in the model stays.
    """
    raw = link.space()
    latency_ms = link.window(Op.CALL, link.staged(packed), raw, goes_on=goes_on)
    return views(truth.frame.output_slots, raw), raw, latency_ms


def has_changed(
    link: RunnerLink, truth: Truth, packed: torch.Tensor, first: Sequence[torch.Tensor]
) -> bool:
    """Whether the oldest answer that the runner keeps no longer is what it was.

    Args:
        link: the runner.
        truth: of the task.
        packed: the input of the last call.
        first: leaves of that answer, as they were.

    Raises:
        RunnerFailed: it did not answer.
    """
    raw = link.space()
    link.window(Op.AGAIN, link.staged(packed), raw)
    again = [truth.near(leaf) for leaf in views(truth.frame.output_slots, raw)]
    return any(not torch.equal(a, b) for a, b in zip(first, again, strict=True))
