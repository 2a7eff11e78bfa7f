"""How far an answer is from the truth, in units of what the input makes it move.

E = RMS(y - y64) / S with S = RMS(y64(x) - y64(x')): an answer that ignores its input has E near 1
whatever its scale, and honest float32 has 1e-7 to 1e-4 (reference/evaluator.md 3.2b, 3.3). Works
on the methods of tensors it is handed and imports no torch itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pike_hpc.records import Tier

if TYPE_CHECKING:
    from torch import Tensor

FLOORS: Mapping[Tier, float] = {Tier.FP32: 1e-5, Tier.TF32: 1e-3, Tier.HALF: 1e-2}
CAP = 0.02
"""No tier reaches further: beyond, an answer no longer shows that the input was used."""
K, K_SMALL, SMALL_ELEMENTS = 3.0, 10.0, 1_000
"""Multiples of the reference's own error that are allowed; few elements make a noisy RMS."""
SPIKE = 50.0
"""No element is off by more than this many signals."""
MIN_CORRELATION: Mapping[Tier, float] = {Tier.FP32: 0.999, Tier.TF32: 0.999, Tier.HALF: 0.99}
MIN_SIGNAL, MAX_NOISE = 1e-2, 1e-3
"""Admission: signal over RMS at least, float32 noise over signal at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafScale:
    """What one output tensor's errors are measured against."""

    signal: float
    """RMS change of the leaf when the input changes; its RMS where it never changes."""
    limits: Mapping[Tier, float]
    """The error at which each tier that can be earned ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafError:
    """One output tensor of one call."""

    error: float
    """E; inf when a value is not finite."""
    spike: float
    """Largest elementwise difference over S."""
    finite: bool


def rms(values: Tensor) -> float:
    """Root mean square in float64; 0 of nothing."""
    if values.numel() == 0:
        return 0.0
    return math.sqrt(float(real(values).double().square().mean()))


def real(values: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return values.view_as_real() if values.is_complex() else values  # type: ignore[operator]


def signal_of(answers: Sequence[Tensor]) -> float:
    """S over all pairs of answers to different inputs: the mean, so that one pair decides less."""
    pairs = [
        rms(a - b) for i, a in enumerate(answers) for b in answers[i + 1 :] if a.shape == b.shape
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def limit(tier: Tier, reference_error: float, elements: int) -> float:
    """The largest E that still earns `tier`."""
    k = K_SMALL if elements < SMALL_ELEMENTS else K
    return min(CAP, max(k * reference_error, FLOORS[tier]))


def compare(answer: Tensor, truth: Tensor, signal: float) -> LeafError:
    """Error of a floating answer. Raises ZeroDivisionError never: a signal of 0 means exact."""
    finite = bool(real(answer).isfinite().all())
    if not finite:
        return LeafError(error=math.inf, spike=math.inf, finite=False)
    off = real(answer).double() - real(truth).double()
    size = rms(off)
    largest = float(off.abs().max()) if off.numel() else 0.0
    if signal <= 0.0:
        exact = size == 0.0
        return LeafError(error=0.0 if exact else math.inf, spike=0.0, finite=True)
    return LeafError(error=size / signal, spike=largest / signal, finite=True)


def correlation(answers: Sequence[Tensor], truths: Sequence[Tensor]) -> float:
    """How well changes of the answers over inputs follow those of the truth: 1 is perfectly."""
    y = [real(a).double() for a in answers]
    t = [real(a).double() for a in truths]
    y_mean, t_mean = sum(y[1:], y[0]) / len(y), sum(t[1:], t[0]) / len(t)
    dot = sum(float(((a - y_mean) * (b - t_mean)).sum()) for a, b in zip(y, t, strict=True))
    norms = [
        math.sqrt(sum(float((a - m).square().sum()) for a in group))
        for group, m in ((y, y_mean), (t, t_mean))
    ]
    return dot / (norms[0] * norms[1]) if norms[0] > 0 and norms[1] > 0 else 0.0


def tier_of(errors: Sequence[float], scales: Sequence[LeafScale]) -> Tier | None:
    """The strictest tier that every leaf's worst error earns; None where none does."""
    for tier in Tier:
        if all(
            tier in scale.limits and error <= scale.limits[tier]
            for error, scale in zip(errors, scales, strict=True)
        ):
            return tier
    return None


def allclose(answer: Tensor, reference: Tensor, tolerance: float) -> bool:
    """PIKE's (1e-2) and KernelBench's (1e-4) rule, with shapes compared and NaN refused."""
    if answer.shape != reference.shape:
        return False
    if not answer.is_floating_point() and not answer.is_complex():
        return bool((answer == reference).all())
    a, b = real(answer).double(), real(reference).double()
    return bool(((a - b).abs() <= tolerance + tolerance * b.abs()).all())
