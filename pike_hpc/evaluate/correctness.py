"""How far an answer is from the truth, in units of what the input makes it move.

E = RMS(y - y64) / S with S = RMS(y64(x) - y64(x')): an answer that ignores its input has E near 1
whatever its scale, and honest float32 has 1e-7 to 1e-4 (docs/evaluator.md). Works
on the methods of tensors it is handed and imports no torch itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
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
LOCAL_ELEMENTS, LOCAL_K = 64, 10.0
"""No stretch of so many elements is off by more than LOCAL_K times what the whole may be: a dead
channel or a corrupted tile hides in the RMS of a large output (one tile of 64 x 64 in 4096 x 4096
is 1.6 %). A stretch that is larger than the signal is measured by its own size."""
MIN_CORRELATION: Mapping[Tier, float] = {Tier.FP32: 0.999, Tier.TF32: 0.999, Tier.HALF: 0.99}
UNEQUAL = 1e-3
"""Part of an integer output (such as an argmax) that may differ between two float32 programs."""
PIECE = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Elements compared at a time: a few float64 pieces fit a core's cache, or fill a GPU."""
MIN_SIGNAL, MAX_NOISE = 1e-2, CAP / (2 * K)
"""Admission: signal over RMS at least; float32 noise over signal at most, so that what is allowed
to be K times as far off stays well below the cap."""


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
    spike: float = 0.0
    """Largest elementwise difference over S."""
    local: float = 0.0
    """RMS difference of the worst stretch of LOCAL_ELEMENTS, over S or over its own RMS."""


def rms(values: Tensor) -> float:
    """Root mean square in float64; 0 of nothing."""
    return rms_difference(values, None)


def rms_difference(a: Tensor, b: Tensor | None) -> float:
    """Root mean square of a - b in float64."""
    tensors = (a,) if b is None else (a, b)
    total = sum(
        float((x[0] - x[1] if b is not None else x[0]).square().sum()) for x in pieces(*tensors)
    )
    count = real(a).numel()
    return math.sqrt(total / count) if count else 0.0


def real(values: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return values.reshape(-1).view(values.real.dtype) if values.is_complex() else values


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of each tensor as float64, PIECE elements at a time.

    Outputs reach 10^8 elements: whole float64 copies would cost more than the model.
    """
    flat = [real(t).reshape(-1) for t in tensors]
    piece = PIECE.get(flat[0].device.type, PIECE["cpu"])
    for start in range(0, flat[0].numel(), piece):
        yield tuple(t[start : start + piece].double() for t in flat)


def signal_of(answers: Sequence[Tensor]) -> float:
    """S: the mean over neighbouring answers to different inputs."""
    found = [rms_difference(a, b) for a, b in itertools.pairwise(answers)]
    return sum(found) / len(found) if found else 0.0


def limit(tier: Tier, reference_error: float, elements: int) -> float:
    """The largest E that still earns `tier`."""
    k = K_SMALL if elements < SMALL_ELEMENTS else K
    return min(CAP, max(k * reference_error, FLOORS[tier]))


def compare(answer: Tensor, truth: Tensor, signal: float) -> LeafError:
    """Error of a floating answer. A signal of 0 asks for equality."""
    total = largest = worst = 0.0
    for y, t in pieces(answer, truth):
        off = y - t
        low, high = off.aminmax()
        total += float(off.dot(off))
        largest = max(largest, float(high), -float(low))
        worst = max(worst, worst_stretch(off, t, signal))
    if not math.isfinite(total):
        return LeafError(error=math.inf, spike=math.inf, local=math.inf)
    size = math.sqrt(total / max(1, real(answer).numel()))
    if signal <= 0.0:
        return LeafError(error=0.0 if size == 0.0 else math.inf)
    return LeafError(error=size / signal, spike=largest / signal, local=worst)


def worst_stretch(off: Tensor, truth: Tensor, signal: float) -> float:
    """The largest RMS of `off` over stretches, each over the signal or its own RMS of `truth`.

    What is left over at the end of a piece counts as a stretch of full length.
    """
    if signal <= 0.0 or not off.numel():
        return 0.0
    short = -off.numel() % LOCAL_ELEMENTS
    errors, sizes = (
        _padded(x.square(), short).view(-1, LOCAL_ELEMENTS).sum(dim=1) for x in (off, truth)
    )
    least = signal * signal * LOCAL_ELEMENTS
    return float((errors / sizes.clamp(min=least)).max().sqrt())


def _padded(values: Tensor, zeros: int) -> Tensor:
    """The values and `zeros` zeros after them."""
    if not zeros:
        return values
    longer = values.new_zeros(values.numel() + zeros)
    longer[: values.numel()] = values
    return longer


def correlation(answers: Sequence[Tensor], truths: Sequence[Tensor]) -> float:
    """How well changes of the answers over inputs follow those of the truth: 1 is perfectly."""
    count = len(answers)
    dot = left = right = 0.0
    for parts in pieces(*answers, *truths):
        y, t = parts[:count], parts[count:]
        y_mean, t_mean = sum(y[1:], y[0]) / count, sum(t[1:], t[0]) / count
        for a, b in zip(y, t, strict=True):
            dot += float(((a - y_mean) * (b - t_mean)).sum())
            left += float((a - y_mean).square().sum())
            right += float((b - t_mean).square().sum())
    norm = math.sqrt(left) * math.sqrt(right)
    return dot / norm if norm > 0 else 0.0


def tier_of(errors: Sequence[float], scales: Sequence[LeafScale]) -> Tier | None:
    """The strictest tier that every leaf's worst error earns; None where none does."""
    for tier in Tier:
        if all(
            tier in scale.limits and error <= scale.limits[tier]
            for error, scale in zip(errors, scales, strict=True)
        ):
            return tier
    return None


def unequal(answer: Tensor, truth: Tensor) -> float:
    """The part of the elements of a whole-number output that differ."""
    return float((answer != truth).double().mean()) if answer.numel() else 0.0


def allclose(answer: Tensor, reference: Tensor, tolerance: float) -> bool:
    """PIKE's (1e-2) and KernelBench's (1e-4) rule, with shapes compared and NaN refused."""
    return answer.shape == reference.shape and part_outside(answer, reference, tolerance) == 0.0


def part_outside(answer: Tensor, reference: Tensor, tolerance: float) -> float:
    """The part of the elements that are not within that rule; NaN is outside."""
    within = sum(
        int(((a - b).abs() <= tolerance + tolerance * b.abs()).sum())
        for a, b in pieces(answer, reference)
    )
    count = real(reference).numel()
    return 1.0 - within / count if count else 0.0
