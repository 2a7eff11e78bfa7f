"""The exam of one task: secret inputs, their float64 answers, and what the reference answers.

Set in two steps, so that a large model's float64 answers are known and their memory is free before
the reference that is timed takes its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.correctness import LeafScale, compare
from pike_hpc.evaluate.judge_admission import Yardstick, scale
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_truth import Secrets, Truth, is_float
from pike_hpc.evaluate.runner import Op
from pike_hpc.tasks.load import LEGACY_INPUT_SEED

SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Secret inputs and what the judge knows of them."""

    inputs: tuple[torch.Tensor, ...]
    truths: tuple[list[torch.Tensor], ...]
    """Answers in the truth's precision, per input and leaf, where the truth keeps them."""
    scales: tuple[LeafScale, ...]
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """A paper that the reference's runner has answered."""

    inputs: tuple[torch.Tensor, ...]
    truths: tuple[list[torch.Tensor], ...]
    references: tuple[list[torch.Tensor], ...]
    scales: tuple[LeafScale, ...]
    reference_errors: tuple[float, ...]
    cost_s: float


def set_paper(truth: Truth, yardstick: Yardstick, secrets: Secrets) -> Paper:
    """Draw inputs and answer them."""
    start = time.monotonic()
    seeds: tuple[int, ...] = (LEGACY_INPUT_SEED,) if truth.legacy else ()
    seeds += tuple(secrets.seed("exam", i) for i in range(SEEDS - len(seeds)))
    inputs = tuple(truth.pack(s) for s in seeds)
    truths = tuple([truth.keep(t) for t in truth.answers(s)] for s in seeds)
    scales = tuple(
        LeafScale(signal=scale([t[i] for t in truths]), limits=yardstick.limits[i])
        for i in range(len(truth.frame.output_slots))
    )
    cost_s = time.monotonic() - start
    return Paper(inputs=inputs, truths=truths, scales=scales, cost_s=cost_s)


def answer(paper: Paper, truth: Truth, reference: RunnerLink) -> Exam:
    """Have the reference's runner answer the paper. Raises RunnerFailed."""
    start = time.monotonic()
    references = tuple([truth.keep(t) for t in call(reference, truth, x)[0]] for x in paper.inputs)
    errors = tuple(
        max(
            compare(r[i], t[i], paper.scales[i].signal).error
            for r, t in zip(references, paper.truths, strict=True)
        )
        if is_float(slot)
        else 0.0
        for i, slot in enumerate(truth.frame.output_slots)
    )
    return Exam(
        inputs=paper.inputs,
        truths=paper.truths,
        references=references,
        scales=paper.scales,
        reference_errors=errors,
        cost_s=paper.cost_s + time.monotonic() - start,
    )


def call(
    link: RunnerLink, truth: Truth, packed: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor, float]:
    """One window: the answer's leaves, its raw bytes, its milliseconds. Raises RunnerFailed."""
    raw = link.space()
    latency_ms = link.window(Op.CALL, link.staged(packed), raw)
    return views(truth.frame.output_slots, raw), raw, latency_ms
