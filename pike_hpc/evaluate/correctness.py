"""How far an answer is from the truth, in units of what the input makes it move.

E = RMS(y - y64) / S with S = RMS(y64(x) - y64(x')): an answer that ignores its input has E near 1
whatever its scale, and honest float32 has 1e-7 to 1e-4 (docs/evaluator.md). Works
on the methods of tensors it is handed and imports no torch itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pike_hpc.evaluate.pieces import LOCAL_ELEMENTS, Indices, pieces, real, stretches
from pike_hpc.records import Tier

if TYPE_CHECKING:
    from torch import Tensor

FLOORS: Mapping[Tier, float] = {Tier.FP32: 1e-5, Tier.TF32: 1e-3, Tier.HALF: 1e-2}
CAP = 0.02
"""No tier reaches further: beyond, an answer no longer shows that the input was used. Where a task
itself makes much of half precision, that one does."""
HALF_K, HALF_CAP = 2.0, 0.05
"""Tier half reaches to HALF_K times what the reference in half precision is off by, if that is over
CAP, and no further than HALF_CAP: other inputs have more of that noise than the one that showed it
(of LeNet5 in bfloat16 4 % of 300 draws of weights had more than twice as much and CAP; 42 % had
more than CAP). Stretches are held to LOCAL_K times CAP all the same: at twice as much as HALF_CAP
allows a dead one would pass while timed."""
K, K_SMALL, SMALL_ELEMENTS = 3.0, 10.0, 1_000
"""Multiples of the reference's own error that are allowed; few elements make a noisy RMS."""
SPIKE = 50.0
"""No element is off by more than this many signals."""
LOCAL_K = 10.0
"""No stretch, and nothing that has one index, is off by more than LOCAL_K times what the whole may
be: a dead channel or a corrupted tile hides in the RMS of a large output (one tile of 64 x 64 in
4096 x 4096 is 1.6 %). What is larger than the signal is measured by its own size."""
NOISE_K = 2.0
"""Where rounding weighs more than the signal of a stretch does, it is measured against this many
times its share of the reference's own noise: float32 says what any arithmetic would do there."""
ROUNDING = 2.0**-24
"""Noise is no share of less: a reference that is off by less has large numbers that are exact, and
beside those all others would have all the noise there is, and could be left out."""
TINY = 1e-33
"""Nothing is measured against less: of that, float32 may flush to zero what a tier lets be off."""
HALF_FLOOR = 2.0**-24 / (LOCAL_K * FLOORS[Tier.HALF])
"""At tier half nothing is measured against less, where the signal is FLOAT16_SIGNAL or more:
float16 has no numbers nearer to zero than 2^-24, and softmax may end far below."""
FLOAT16_SIGNAL = 2.0**-24 / (math.sqrt(12) * CAP)
"""Where the signal is less, float16 alone is off by more than CAP (in steps of 2^-24 the error is
uniform): no answer in it earns half that ends there, and elsewhere its zeros get no allowance."""
DEAD_PART = 1 / 16
"""Of the mean square of what lives beside dead elements, what each dead one counts for at tier
half: of a stretch with one that barely lives, bfloat16 may make another live. A channel that lives
in more than 0.3 % of its places is still missed."""
MIN_CORRELATION: Mapping[Tier, float] = {Tier.FP32: 0.999, Tier.TF32: 0.999, Tier.HALF: 0.99}
UNEQUAL, TIES = 1e-3, 1e-4
"""Part of an integer output (such as an argmax) that may differ between two float32 programs, of
all that moves with the input: in one of thousands of calls, and in an exam. Products that are
rounded to whole numbers fall the other way in one of a million."""
LOCAL_UNEQUAL, INDEX_UNEQUAL = 4, 1 / 8
"""How many of LOCAL_ELEMENTS neighbours, and which part of what has one index, may: a tile or a
column that was left out differs in more."""
MIN_SIGNAL, MAX_NOISE = 1e-2, CAP / (1.25 * K)
"""Admission: signal over RMS at least; float32 noise over signal at most, so that what is allowed
to be K times as far off stays below the cap, also where the next weights make more noise of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grain:
    """What the errors of single stretches are measured against, where the signal hides them.

    An output may grow by orders of magnitude along a dimension: held against the signal of the
    whole, its small parts could be left out.
    """

    least: Tensor
    """Per stretch of LOCAL_ELEMENTS, a sum of squares: at least so much it is measured against."""
    indices: Indices
    """Which dimensions are looked at index by index."""
    by_index: tuple[Tensor, ...]
    """The same per index of each of these, a mean over what has it."""
    still: Tensor
    """What tier half adds to `least` for elements that a ReLU left dead ..."""
    still_by_index: tuple[Tensor, ...]
    """... and to `by_index`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafScale:
    """What one output tensor's errors are measured against."""

    signal: float
    """RMS change of the leaf when the input changes; its RMS where it never changes."""
    limits: Mapping[Tier, float]
    """The error at which each tier that can be earned ends."""
    grain: Grain | None = None
    """What single stretches are measured against; None: the signal."""
    moves: float = 1.0
    """Of whole numbers: the part of the elements that change when the input does."""
    size: float = math.inf
    """The largest RMS of a right answer to the exam."""

    def grown(self, size: float) -> float:
        """How many times as large as any in the exam a right answer of that RMS is; at least 1.

        Tails are heavy where exponentials or products are the answer: of thousands of inputs one
        is off by more than the signal of three, and by no more of itself.
        """
        return max(1.0, size / self.size) if 0.0 < self.size < math.inf else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafError:
    """One output tensor of one call."""

    error: float
    """E; inf when a value is not finite."""
    spike: float = 0.0
    """Largest elementwise difference over S."""
    local: float = 0.0
    """RMS difference of the worst stretch of LOCAL_ELEMENTS, over S (or what its grain says) or
    over its own RMS; of what has the worst index, too."""
    local_half: float = 0.0
    """The same as tier half has it: what float16 makes zero of may be zero."""
    size: float = 0.0
    """RMS of what is right."""


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


def signal_of(answers: Sequence[Tensor]) -> float:
    """S: the mean over neighbouring answers to different inputs."""
    found = [rms_difference(a, b) for a, b in itertools.pairwise(answers)]
    return sum(found) / len(found) if found else 0.0


def limit(tier: Tier, reference_error: float, elements: int) -> float:
    """The largest E that still earns `tier`."""
    reach = min(HALF_K * reference_error, HALF_CAP) if tier is Tier.HALF else CAP
    return min(max(CAP, reach), max(own_share(reference_error, elements), FLOORS[tier]))


def own_share(reference_error: float, elements: int) -> float:
    """The E that is allowed for what the reference itself is off by."""
    return (K_SMALL if elements < SMALL_ELEMENTS else K) * reference_error


def compare(answer: Tensor, truth: Tensor, signal: float, grain: Grain | None = None) -> LeafError:
    """Error of a floating answer. A signal of 0 asks for equality."""
    grains = [] if grain is None else [grain, in_half(grain, signal)]
    whole = signal * signal
    total = largest = right = 0.0
    worst = [[0.0]]
    indices = Indices.of(truth, answer) if grain is None else grain.indices
    seen = 0
    tables: list[Tensor] = []
    for y, t in pieces(answer, truth, step=indices.step):
        off = y - t
        low, high = off.aminmax()
        squares, sizes = off.square(), t.square()
        total += float(squares.sum())
        right += float(sizes.sum())
        largest = max(largest, float(high), -float(low))
        if signal > 0.0:
            errors, own = (stretches(x) for x in (squares, sizes))
            first = seen // LOCAL_ELEMENTS
            part = [g.least[first : first + errors.numel()] for g in grains]
            worst.append(_worst(errors, own, part or [whole * LOCAL_ELEMENTS]))
        if indices.period:
            tables = _added(tables, [indices.sums(x) for x in (squares, sizes)])
        seen += off.numel()
    if not math.isfinite(total):
        return LeafError(error=math.inf, spike=math.inf, local=math.inf, local_half=math.inf)
    size = math.sqrt(total / max(1, seen))
    if signal <= 0.0:
        return LeafError(error=0.0 if size == 0.0 else math.inf)
    if tables:
        errors_by, own_by = (indices.means(table) for table in tables)
        for at, (errors, own) in enumerate(zip(errors_by, own_by, strict=True)):
            worst.append(_worst(errors, own, [g.by_index[at] for g in grains] or [whole]))
    return LeafError(
        error=size / signal,
        spike=largest / signal,
        local=max(found[0] for found in worst),
        local_half=max(found[-1] for found in worst),
        size=math.sqrt(right / max(1, seen)),
    )


def in_half(grain: Grain, signal: float) -> Grain:
    """The grain as tier half has it: what float16 makes zero of may be zero, and the dead may live.

    Args:
        grain: of an output.
        signal: of that output; where no answer in float16 earns half, what it makes zero counts.
    """
    floor = HALF_FLOOR**2 if signal >= FLOAT16_SIGNAL else 0.0
    most = signal * signal

    def more(least: Tensor, still: Tensor, count: int) -> Tensor:
        return (least + still).clamp(max=most * count).clamp(min=floor * count)

    both = zip(grain.by_index, grain.still_by_index, strict=True)
    return replace(
        grain,
        least=more(grain.least, grain.still, LOCAL_ELEMENTS),
        by_index=tuple(more(least, still, 1) for least, still in both),
    )


def _worst(errors: Tensor, own: Tensor, leasts: Sequence[Tensor | float]) -> list[float]:
    """The largest root of an error over its own size, or over what it is at least held against.

    Args:
        errors: sums of squares over so many elements, such as a stretch.
        own: of the truth.
        leasts: what all, or each, are at least held against; one answer for each.
    """
    floors = [
        own.clamp(min=x) if isinstance(x, float) else own.maximum(x.to(own.device)) for x in leasts
    ]
    return [float((errors / floor).max().sqrt()) for floor in floors]


def grain_of(
    truths: Sequence[Tensor], references: Sequence[Tensor], signal: float, error: float
) -> Grain | None:
    """What stretches are measured against: their own signal over the inputs, or their noise.

    None where the signal of the whole must do: the reference is the truth, or never moves. So it
    does for every stretch that neither moves nor has an error, such as one that a ReLU left dead:
    what other arithmetic makes of it can't be told. One that moves and is exact, such as numbers
    that are only sorted, is held against what it moves by.

    Where a ReLU leaves few alive, a stretch may hold one that barely lives, and in other arithmetic
    another: at tier half each dead element counts for a part of what lives among the dead.

    Args:
        truths: answers to several inputs.
        references: those of the reference as it ships.
        signal: of the whole output.
        error: of the reference, over the signal.
    """
    if signal <= 0.0 or not 0.0 < error < math.inf or not truths[0].numel():
        return None
    count, indices = len(truths), Indices.of(truths[0], *references)
    found: list[list[Tensor]] = []
    tables: list[Tensor] = []
    dead: list[Tensor] = []
    dead_by: list[Tensor] = []
    for parts in pieces(*truths, *references, step=indices.step):
        t, r = parts[:count], parts[count:]
        moves = [(a - b).square() for a, b in itertools.pairwise(t)]
        squares = [sum(moves[1:], moves[0]) / len(moves)]
        squares += [(a - b).square() for a, b in zip(r, t, strict=True)]
        found.append([stretches(x) for x in squares])
        is_dead = (sum(squares[1:], squares[0]) == 0.0).to(squares[0])
        dead.append(stretches(is_dead))
        if indices.period:
            tables = _added(tables, [indices.sums(x) for x in squares])
            dead_by = _added(dead_by, [indices.sums(is_dead)])
    share = (NOISE_K / _error_where_any(found, error)) ** 2
    among = DEAD_PART * _among_the_dead([moves for moves, *_ in found], dead)
    least, still = (dead[0].new_empty(sum(x.numel() for x in dead)) for _ in range(2))
    start = 0
    for sums, count_dead in zip(found, dead, strict=True):
        end = start + count_dead.numel()
        least[start:end] = _least(sums, share, signal, LOCAL_ELEMENTS)
        still[start:end] = among * count_dead
        start = end
    by_index = zip(*(indices.means(table) for table in tables), strict=True)
    return Grain(
        least=least,
        indices=indices,
        by_index=tuple(_least(means, share, signal, 1) for means in by_index),
        still=still,
        still_by_index=tuple(among * part for table in dead_by for part in indices.means(table)),
    )


def _added(sums: Sequence[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Term by term; nothing has been summed at first."""
    return [a + b for a, b in zip(sums, more, strict=True)] if sums else more


def _among_the_dead(moves: Sequence[Tensor], dead: Sequence[Tensor]) -> float:
    """Mean square of what moves in stretches that hold dead elements as well; 0 where none does.

    Args:
        moves: per piece, of each stretch the sum of squares.
        dead: likewise, how many of its elements neither move nor have an error.
    """
    total = alive = 0.0
    for sums, count in zip(moves, dead, strict=True):
        mixed = (count > 0.0) & (count < LOCAL_ELEMENTS)
        total += float(sums[mixed].sum())
        alive += float((LOCAL_ELEMENTS - count[mixed]).sum())
    return total / alive if alive else 0.0


def _error_where_any(found: Sequence[Sequence[Tensor]], error: float) -> float:
    """The reference's error over the signal, both of those stretches alone in which it has one.

    What is exact beside them may be so large that they seem to have no error at all.

    Args:
        found: per piece, of each of its stretches the sums of squares that `_least` takes.
        error: of the whole, which it is where nothing is exact.
    """
    moved, most = 0.0, 0.0
    for moves, *errors in found:
        any_error = sum(errors[1:], errors[0]) > 0.0
        moved += float(moves[any_error].sum())
        most += max(float(x.sum()) for x in errors)
    own = math.sqrt(most / moved) if moved > 0.0 else 0.0
    return max(error, own, ROUNDING)


def _least(squares: Sequence[Tensor], share: float, signal: float, count: int) -> Tensor:
    """The larger of what moves and what noise makes of it; at most the signal of `count` elements.

    Args:
        squares: sums over `count` elements: of the signal, then of the reference's errors.
        share: noise to the signal that has that noise elsewhere, squared.
        signal: of the whole output.
        count: elements of a sum.
    """
    noise = squares[1]
    for other in squares[2:]:
        noise = noise.maximum(other)
    most = signal * signal * count
    least = squares[0].maximum(noise * share).clamp(min=TINY * TINY * count, max=most)
    return least.masked_fill((noise == 0.0) & (squares[0] == 0.0), most)


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
    different = int((answer != truth.to(answer.device)).sum())
    return different / answer.numel() if different else 0.0


def moving(answers: Sequence[Tensor]) -> float:
    """The part of a whole-number output that changes with the input; the mean over neighbours."""
    found = [unequal(a, b) for a, b in itertools.pairwise(answers)]
    return sum(found) / len(found) if found else 0.0


def are_ties(different: Tensor, most: float) -> bool:
    """Whether elements of a whole-number output differ as near ties do: few, and far apart.

    Args:
        different: whether each does.
        most: the part of them that may.
    """
    count = int(different.sum())
    return not count or (count <= most * different.numel() and are_scattered(different))


def are_scattered(different: Tensor) -> bool:
    """Whether no stretch, and nothing that has one index, has many of the differences."""
    flat, indices = different.reshape(-1), Indices.of(different)
    if float(stretches(flat).max()) > LOCAL_UNEQUAL:
        return False
    by_index = indices.means(indices.sums(flat)) if indices.period else []
    least = (LOCAL_UNEQUAL * len(part) / len(flat) for part in by_index)
    most = (max(INDEX_UNEQUAL, part) for part in least)
    return all(float(part.max()) <= end for part, end in zip(by_index, most, strict=True))


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
