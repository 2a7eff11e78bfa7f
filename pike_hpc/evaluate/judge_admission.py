"""Whether a task can tell right from wrong: signal, noise, and mutants that must fail.

Run once per task and way of drawing weights, before anybody is judged on it; docs/evaluator.md
has the rules. On the CPU the tiers tf32 and half end at their floors unless bfloat16 autocast is
cheap here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.correctness import (
    CAP,
    MAX_NOISE,
    MIN_SIGNAL,
    compare,
    limit,
    rms,
    signal_of,
)
from pike_hpc.evaluate.judge_truth import Truth, is_float
from pike_hpc.records import Tier

ADMISSION_SEEDS = (201, 202)
"""Public: nothing is judged on these inputs, and the same task is admitted the same way twice."""
CHEAP_CALL_S = 0.1
"""A reference faster than this in float32 is also run in half precision on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the errors of one task are held against."""

    admission: Admission
    limits: tuple[Mapping[Tier, float], ...]
    """Per output leaf; empty for leaves that must be equal."""
    noise: tuple[float, ...]
    """Per output leaf, E of the float32 reference."""


def admit(truth: Truth, task_digest: str) -> Yardstick:
    """Measure signal and noise and try the mutants."""
    seeds = ADMISSION_SEEDS
    wide = [truth.answers(s) for s in seeds]
    start = time.monotonic()
    narrow = [truth.answers32(s) for s in seeds]
    again = truth.answers32(seeds[0])
    cheap = (time.monotonic() - start) / (len(seeds) + 1) < CHEAP_CALL_S
    floats = [i for i, slot in enumerate(truth.frame.output_slots) if is_float(slot)]
    reason = _unusable(wide, narrow, again)
    if reason:
        return _refused(truth, task_digest, reason, len(truth.frame.output_slots))
    signals = [scale([w[i] for w in wide]) for i in range(len(truth.frame.output_slots))]
    noise = _noise(wide, narrow, signals, floats)
    halves = _half_noise(truth, seeds, wide, signals, floats) if cheap else {}
    tf32 = _tf32_noise(truth, seeds, wide, signals, floats)
    tiers = [t for t in Tier if truth.precision == "float64" or t is not Tier.FP32]
    limits: list[Mapping[Tier, float]] = []
    for i, slot in enumerate(truth.frame.output_slots):
        own = {
            Tier.FP32: noise[i],
            Tier.TF32: max(noise[i], tf32.get(i, 0.0)),
            Tier.HALF: max(tf32.get(i, 0.0), halves.get(i, 0.0)),
        }
        limits.append({t: limit(t, own[t], slot.count) for t in tiers} if i in floats else {})
    mutants = _mutants(wide, signals, floats)
    weakest = min(mutants.values(), default=math.inf)
    kept = {t: min((limits[i][t] for i in floats), default=CAP) for t in tiers}
    kept = {t: size for t, size in kept.items() if size < weakest}
    ratio = min((_ratio([w[i] for w in wide]) for i in floats), default=1.0)
    reason = "" if truth.legacy else _too_coarse(ratio, max(noise, default=0.0), kept)
    return Yardstick(
        admission=Admission(
            task_digest=task_digest,
            admitted=not reason,
            reason=reason,
            signal=ratio,
            noise=max(noise, default=0.0),
            limits={t.value: size for t, size in kept.items()},
            mutants=mutants,
            reference_precision=truth.precision,
        ),
        limits=tuple({t: x for t, x in leaf.items() if t in kept} for leaf in limits),
        noise=noise,
    )


def scale(answers: Sequence[torch.Tensor]) -> float:
    """S of a leaf; its RMS where it doesn't depend on the input at all, such as a mask."""
    return signal_of(answers) or rms(answers[0]) or 1.0


def _ratio(answers: Sequence[torch.Tensor]) -> float:
    """Signal over RMS; a leaf that never moves does not count against the task."""
    signal, size = signal_of(answers), rms(answers[0])
    return signal / size if signal > 0 and size > 0 else 1.0


def _unusable(
    wide: Sequence[Sequence[torch.Tensor]],
    narrow: Sequence[Sequence[torch.Tensor]],
    again: Sequence[torch.Tensor],
) -> str:
    if not all(bool(t.isfinite().all()) for call in (*wide, *narrow) for t in call):
        return "the reference gives values that are not finite"
    if not all(a.allclose(b, 1e-4, 1e-6) for a, b in zip(narrow[0], again, strict=True)):
        return "the reference gives two answers to one input"
    if all(torch.equal(a, b) for a, b in zip(wide[0], wide[1], strict=True)):
        return "the output does not depend on the input"
    return ""


def _too_coarse(ratio: float, noise: float, kept: Mapping[Tier, float]) -> str:
    if ratio <= MIN_SIGNAL:
        return f"the output moves by {ratio:.1e} of its size with the input, under {MIN_SIGNAL:g}"
    if noise >= MAX_NOISE:
        return f"float32 itself is off by {noise:.1e} of the signal, over {MAX_NOISE:g}"
    return "" if kept else "trivial wrong answers would pass at every tier"


def _noise(
    wide: Sequence[Sequence[torch.Tensor]],
    narrow: Sequence[Sequence[torch.Tensor]],
    signals: Sequence[float],
    floats: Sequence[int],
) -> tuple[float, ...]:
    return tuple(
        max(compare(n[i], w[i], signals[i]).error for w, n in zip(wide, narrow, strict=True))
        if i in floats
        else 0.0
        for i in range(len(signals))
    )


def _half_noise(
    truth: Truth,
    seeds: Sequence[int],
    wide: Sequence[Sequence[torch.Tensor]],
    signals: Sequence[float],
    floats: Sequence[int],
) -> dict[int, float]:
    """E of the reference under bfloat16 autocast; nothing where it does not run so."""
    try:
        with torch.autocast(truth.device.type, dtype=torch.bfloat16):
            answers = truth.answers32(seeds[0])
    except RuntimeError:
        return {}
    return {i: compare(answers[i], wide[0][i], signals[i]).error for i in floats}


def _tf32_noise(
    truth: Truth,
    seeds: Sequence[int],
    wide: Sequence[Sequence[torch.Tensor]],
    signals: Sequence[float],
    floats: Sequence[int],
) -> dict[int, float]:
    """E of the reference with TF32 in convolutions and matrix products; CUDA alone has it."""
    if truth.device.type != "cuda":
        return {}
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        with torch.backends.cudnn.flags(allow_tf32=True):
            answers = truth.answers32(seeds[0])
    finally:
        matmul.allow_tf32 = before
    return {i: compare(answers[i], wide[0][i], signals[i]).error for i in floats}


def _mutants(
    wide: Sequence[Sequence[torch.Tensor]], signals: Sequence[float], floats: Sequence[int]
) -> dict[str, float]:
    """Trivial wrong answers to their error, the worst over leaves as for a candidate."""
    if not floats:
        return {}

    def worst(answer: Sequence[torch.Tensor]) -> float:
        return max(compare(answer[i], wide[0][i], signals[i]).error for i in floats)

    count = len(wide)
    return {
        "zeros": worst([torch.zeros_like(t) for t in wide[0]]),
        "mean": worst(
            [sum(w[i].double() for w in wide) / count for i in range(len(wide[0]))]  # type: ignore[misc]
        ),
        "other_input": worst(wide[1]),
    }


def _refused(truth: Truth, task_digest: str, reason: str, leaves: int) -> Yardstick:
    return Yardstick(
        admission=Admission(
            task_digest=task_digest,
            admitted=False,
            reason=reason,
            reference_precision=truth.precision,
        ),
        limits=({},) * leaves,
        noise=(0.0,) * leaves,
    )
