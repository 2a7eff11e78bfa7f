"""The least time that a task's bytes and operations take on a GPU, by its data sheet. No torch.

Two numbers, in milliseconds:

- The **floor** is what no program can beat: inputs and outputs beyond what the L2 cache holds must
  cross the memory bus once in every call, because inputs are fresh and outputs were overwritten
  before it. It is a gate: a candidate below it did not do its work inside the timed window.
- The **roofline** adds the reference's own matrix products and convolutions at the tier's peak. It
  is a goal for a search and never a gate, because operations are no lower bound: Winograd divides
  those of a 3 x 3 convolution by 2.25 to 5, a pooling that is moved before a 1 x 1 convolution
  divides them by 4 (level3-pike 13), a causal mask by 2, two products in a row collapse into one.
  No divisor covers all of that and still refuses anything.

Weights are in neither: which of them a call reads is the model's own affair (experts, embeddings),
and a program may keep them folded or narrower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pike_hpc.evaluate.device import slug
from pike_hpc.records import Tier, Timing

MARGIN = 1.05
"""A candidate is refused below the floor divided by this."""

CONSTANT_MS = 0.02
"""How far the protocol's constant, which is taken off every latency, may be off. On an H200 its
interquartile range was 0.005 ms; 0.02 ms are 96 MB there, so little is given away."""

EXCUSED = 1.1
"""How many times its latency a candidate may have taken, however wide its interval is. A program
can make its own times vary; of honest ones none takes less than twice its floor."""

BEYOND_CACHE = 0.5
"""Part of a call's bytes from which the floor says something of copies of them all: the protocol's
constant then is at most five times the floor (four times the bytes, at three quarters of the peak
and a half of them cached), and who saves copies earns no more than that."""

CONFIDENCE = 0.99
"""With which `sure_part` holds."""

SPLIT_PRODUCTS = 3
"""Products in half precision that make one of float32 accuracy (22 bits from two float16 halves of
each operand, the smallest product left out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a GPU can do at most."""

    memory_gb_s: float
    """GB/s, 10^9 bytes."""
    fp32_tflops: float
    """Outside tensor cores."""
    half_tflops: float
    """float16 or bfloat16 in tensor cores, dense."""
    source: str

    def tflops(self, tier: Tier) -> float:
        """The fastest arithmetic that can earn the tier.

        float16 has the mantissa of TF32 and may earn that tier.
        """
        if tier is Tier.FP32:
            return max(self.fp32_tflops, self.half_tflops / SPLIT_PRODUCTS)
        return self.half_tflops


def _peaks(memory_gb_s: float, fp32: float, half: float, source: str) -> Peaks:
    return Peaks(memory_gb_s=memory_gb_s, fp32_tflops=fp32, half_tflops=half, source=source)


_V100 = "NVIDIA V100 Tensor Core GPU data sheet, 2020"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, 2021"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, 2023"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, 2024"
_B200 = "NVIDIA HGX B200 data sheet, 2024"

PEAKS: Mapping[str, Peaks] = {
    "tesla-v100-sxm2-16gb": _peaks(900, 15.7, 125, _V100),
    "tesla-v100-sxm2-32gb": _peaks(900, 15.7, 125, _V100),
    "tesla-v100-pcie-16gb": _peaks(900, 14.0, 112, _V100),
    "tesla-v100-pcie-32gb": _peaks(900, 14.0, 112, _V100),
    "tesla-v100s-pcie-32gb": _peaks(1134, 16.4, 130, _V100),
    "nvidia-a100-sxm4-40gb": _peaks(1555, 19.5, 312, "NVIDIA A100 data sheet, 2020"),
    "nvidia-a100-pcie-40gb": _peaks(1555, 19.5, 312, "NVIDIA A100 data sheet, 2020"),
    "nvidia-a100-sxm4-80gb": _peaks(2039, 19.5, 312, _A100),
    "nvidia-a100-80gb-pcie": _peaks(1935, 19.5, 312, _A100),
    "nvidia-a40": _peaks(696, 37.4, 149.7, "NVIDIA A40 data sheet, 2021"),
    "nvidia-l40s": _peaks(864, 91.6, 362, "NVIDIA L40S data sheet, 2023"),
    "nvidia-h100-80gb-hbm3": _peaks(3350, 67, 989, _H100),
    "nvidia-h100-pcie": _peaks(2039, 51, 756, _H100),
    "nvidia-h100-nvl": _peaks(3938, 60, 835, _H100),
    "nvidia-h200": _peaks(4800, 67, 989, _H200),
    "nvidia-h200-nvl": _peaks(4800, 60, 835, _H200),
    "nvidia-b200": _peaks(8000, 80, 2250, _B200),
}
"""By device kind, the slug of the name the driver gives: a part of a GPU (MIG) has another name and
is not here. The size of the L2 cache is no column: the driver tells it (on an H200 60 MiB, and not
the 50 MB of its data sheet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of a task must do."""

    input_bytes: float
    """Of those that were seen to matter; see `sure_part`."""
    output_bytes: int
    flops: int
    """Of the reference's products and convolutions; 0 where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the work takes at least on one GPU."""

    floor_ms: float
    roofline_ms: float
    """Never below the floor."""


def peaks_of(name: str) -> Peaks | None:
    """The peaks of the GPU that the driver calls `name`; None where no data sheet is known."""
    return PEAKS.get(slug(name))


def limits(work: Work, peaks: Peaks, l2_bytes: int, tier: Tier) -> Limits:
    """Floor and roofline of the work.

    At the start of a call the L2 cache may hold as much of the input as fits, since the judge has
    just written it, and at the end as much of the output that is not yet in memory.
    """
    floor_ms = _beyond(work, l2_bytes) / (peaks.memory_gb_s * 1e6)
    return Limits(
        floor_ms=floor_ms,
        roofline_ms=max(floor_ms, work.flops / (peaks.tflops(tier) * 1e9)),
    )


def bounds_copies(work: Work | None, l2_bytes: int) -> bool:
    """Whether the floor bounds what a program can gain that saves copies of its buffers.

    Decided by bytes alone, so that all timings of a task are read alike.
    """
    if work is None:
        return False
    return _beyond(work, l2_bytes) > BEYOND_CACHE * (work.input_bytes + work.output_bytes)


def _beyond(work: Work, l2_bytes: int) -> float:
    return max(0.0, work.input_bytes - l2_bytes) + max(0, work.output_bytes - l2_bytes)


def impossible(timing: Timing, floor_ms: float) -> bool:
    """Whether the candidate was faster than the floor, by more than the clock may err.

    Taken at the slow end of the interval, which is worth EXCUSED at the most.
    """
    slow_end_ms = min(timing.reference_ms / timing.ci95[0], EXCUSED * timing.candidate_ms)
    return max(timing.candidate_ms, slow_end_ms) + CONSTANT_MS < floor_ms / MARGIN


def sure_part(hits: int, trials: int) -> float:
    """The part of all places that matter at least, where `hits` of `trials` drawn ones did.

    One-sided Clopper-Pearson bound at CONFIDENCE; 0 without a hit. `trials` of 0 knows nothing.
    """
    if not hits:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if _at_least(hits, trials, middle) > 1 - CONFIDENCE:
            high = middle
        else:
            low = middle
    return low


def _at_least(hits: int, trials: int, part: float) -> float:
    """Probability of so many hits or more."""
    return math.fsum(
        math.comb(trials, k) * part**k * (1 - part) ** (trials - k) for k in range(hits, trials + 1)
    )
