"""Marks: how far a candidate's answers to an exam are from the truth, and what that earns.

Pure of processes: takes answers as tensors, gives errors, a tier, or the reason for a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pike_hpc.evaluate.correctness import (
    CAP,
    LOCAL_K,
    MIN_CORRELATION,
    SPIKE,
    TIES,
    LeafError,
    LeafScale,
    allclose,
    are_ties,
    compare,
    correlation,
    in_half,
    tier_of,
)
from pike_hpc.evaluate.judge_admission import UNMEASURABLE
from pike_hpc.evaluate.judge_agreement import PIKE_TOLERANCE, Tally, Tolerance, stretches_with
from pike_hpc.evaluate.judge_exam import Exam
from pike_hpc.evaluate.judge_frame import is_float
from pike_hpc.evaluate.judge_near_ties import NearTies
from pike_hpc.evaluate.judge_off import named, off, told_apart, worst
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.evaluate.pieces import LOCAL_ELEMENTS
from pike_hpc.records import Correctness, EvalStatus, LegacyVerdicts, Tier

AS_GOOD = 3.0
"""k of the tiers' limits: within this factor two errors are of the same precision."""

ROUNDED = 0.25
"""Nobody is taken to have been off by more of the signal for the coarseness of half alone."""

KERNELBENCH_TOLERANCE = 1e-4

USUAL_K, COARSE = 1.25, 0.14
"""A tier holds while timed where all answers but such a part are within so many of its limits.

More than 1, since inputs differ and few numbers make a noisy RMS. An estimate moves from 0.147 on:
half of the windows of 0.29 of the blocks."""

MOST_MORE = 4.0
"""A state that makes more of what is off than so many times as much has no other limits."""

NOT_OFFERED = (
    ": tier half is not offered, for wrong answers are as near here as half precision is; a more "
    "precise program can be judged"
)
"""What is added to a refusal that may be one of half precision alone."""

BY_SEED = (
    "it was asked with weights from one seed, for the reference's have no place in it or gave a "
    "wrong answer there: use its names, or define prepare(state_dict)"
)
"""What is added to a refusal of a program that was judged on weights from a seed."""

KEEPS_STATE = (
    "before each call what the constructor made of the task's state is put back: make yours there"
)
"""The same where the reference leaves something to its next call."""

Answers = Sequence[Sequence[torch.Tensor]]
"""Per call, per output leaf."""


class Verdict(Exception):
    """The evaluation is over, without a pass."""

    def __init__(self, status: EvalStatus, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What the answers to an exam earned."""

    correctness: Correctness
    tier: Tier
    refusal: Verdict | None
    """Why they earned nothing after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """At one float leaf, its parts and not its whole: the worst over the calls."""

    leaf: int
    spike: float
    local: float
    local_half: float
    follows: float
    """How well its changes follow the truth's; 1 where that never moves."""


class Marker:
    """Marks the answers to one exam."""

    def __init__(self, truth: Truth, exam: Exam, asked: Collection[Tier]) -> None:
        self._truth, self._exam, self._asked = truth, exam, asked
        self._slots = truth.frame.output_slots
        self._floats = [i for i, slot in enumerate(self._slots) if is_float(slot)]
        self._scales = [exam.scales[i] for i in self._floats]
        self._ties = NearTies(truth, exam)

    def mark(self, answers: Answers) -> Mark:
        """The tier earned, or the refusal."""
        found = self.leaf_errors(answers, self._exam.truths)
        errors = [max(f.error for f in leaf) for leaf in found]
        whole = tier = tier_of(errors, self._scales)
        looks: list[Look] = []
        if whole is not None and not self._truth.legacy:
            looks = self._looks(answers, found)
            tier = self._in_each_part(errors, looks)
        legacy = self._legacy(answers)
        worst = max(errors, default=0.0)
        shown = tier or Tier.HALF
        correctness = Correctness(
            relative_error=min(worst, UNMEASURABLE),
            limit=self._limit(shown),
            seeds=len(answers),
            reference_precision=self._truth.precision,
            legacy=legacy,
        )
        if self._truth.legacy:
            refusal = None if legacy.pike else wrong("fails PIKE's allclose(1e-2)")
        else:
            refusal = self._refusal(answers, looks, whole, tier, worst)
        if refusal is not None and refusal.status is EvalStatus.WRONG_RESULT:
            refusal = wrong("; ".join([refusal.message, *self._hints()]))
        return Mark(correctness=correctness, tier=shown, refusal=refusal)

    def _hints(self) -> list[str]:
        """What else may have made the answers wrong than how they are computed."""
        if self._truth.legacy:
            return []
        by_seed = self._truth.by is WeightsBy.SEED
        return [BY_SEED] * by_seed + [KEEPS_STATE] * self._truth.resets

    def errors(self, answers: Answers, truths: Answers) -> list[float]:
        """Worst error of each float leaf over the calls."""
        return [max(f.error for f in leaf) for leaf in self.leaf_errors(answers, truths)]

    def leaf_errors(self, answers: Answers, truths: Answers) -> list[list[LeafError]]:
        """Per float leaf and call."""
        pairs = list(zip(answers, truths, strict=True))
        return [
            [_measured(a[i], t[i], self._exam.scales[i]) for a, t in pairs] for i in self._floats
        ]

    def within(self, answer: Sequence[torch.Tensor], tier: Tier) -> bool:
        """Whether the first input's answer is within the limit of `tier` or of a stricter one."""
        if self._truth.legacy:
            return True
        found = tier_of(self.errors([answer], self._exam.truths[:1]), self._scales)
        return found is not None and found.rank <= tier.rank

    def limits(self, tier: Tier) -> list[float]:
        """Of a tier, for each float leaf."""
        return [s.limits.get(tier, CAP) for s in self._scales]

    def loosest(self) -> list[float]:
        """The largest limit of each float leaf."""
        return [max(s.limits.values(), default=CAP) for s in self._scales]

    def tolerance(self, tier: Tier) -> Tolerance:
        """For timed outputs, which are compared with the reference runner's.

        Both sides may be off: the candidate by its tier's limit, the reference by its own. A
        factor of two for inputs that are harder than the exam's. Where each timed call goes on from
        another, what is off in the state adds to it: as much more as it does of the reference's.
        """
        looser = None if self._truth.legacy else self._next(tier)
        limits, local, usual = [], [], []
        for i, error in enumerate(self._exam.reference_errors):
            scale, second = self._exam.scales[i], self._exam.second_errors[i]
            more = min(MOST_MORE, max(1.0, second / error)) if error > 0.0 else 1.0
            limit, off = more * scale.limits.get(tier, CAP), max(error, second)
            limits.append(2 * (limit + off))
            usual.append(USUAL_K * limit + 2 * off)
            local.append(2 * (more * self._local_limit(i, tier) + LOCAL_K * off))
        return Tolerance(
            scales=tuple(_as_seen_at(tier, scale) for scale in self._exam.scales),
            limits=tuple(limits),
            local=tuple(local),
            usual=tuple(usual),
            pike=self._truth.legacy,
            looser=None if looser is None else self.tolerance(looser),
            chooses=self._truth.frame.chooses,
        )

    def broken_in_checks(self, errors: Sequence[Sequence[LeafError]], tier: Tier) -> str:
        """How spot checks, as `leaf_errors` has them, break twice the limit of a tier; or empty.

        Twice, for inputs that are harder than the exam's.
        """
        found = []
        for i, leaf in zip(self._floats, errors, strict=False):  # none where none was drawn
            limit, local = self._exam.scales[i].limits.get(tier, CAP), self._local_limit(i, tier)
            output = named(i, len(self._slots))
            found += [off(f.error, 2 * limit, _local(f, tier), 2 * local, output) for f in leaf]
        broken = worst(found)
        return "" if broken is None else f"{broken}, in a call held against float64 afterwards"

    def loosened(self, tier: Tier, known: Correctness, why: str) -> tuple[Tier, Correctness]:
        """What the answers earn after all, if they were too coarse for `tier` while timed.

        Args:
            tier: what they do not earn.
            known: of the exam.
            why: how coarse they were.

        Raises:
            Verdict: there is no such tier, or it was not asked for.
        """
        looser = self._next(tier)
        if looser is None:
            raise wrong(f"coarser while it was timed than tier {tier} allows: {why}")
        return looser, replace(known, limit=self._limit(looser))

    def _next(self, tier: Tier) -> Tier | None:
        """The next that was asked for and ends as far out as single timed answers may be."""
        for looser in Tier:
            far = all(
                looser in s.limits and s.limits[looser] >= 2 * s.limits.get(tier, CAP)
                for s in self._scales
            )
            if looser.rank > tier.rank and far and any(t.rank >= looser.rank for t in self._asked):
                return looser
        return None

    def _refusal(
        self,
        answers: Answers,
        looks: Sequence[Look],
        whole: Tier | None,
        tier: Tier | None,
        worst: float,
    ) -> Verdict | None:
        limit = self._limit(tier or Tier.HALF)
        if not math.isfinite(worst):
            return wrong("its output holds values that are not finite")
        if differ := self._whole_numbers_differ(answers):
            return wrong(f"an integer output differs from the reference's in {differ} elements")
        if whole is None or tier is None:
            return self._too_far(worst, limit)
        loosest = max(self._asked, key=lambda t: t.rank)
        if loosest.rank < tier.rank:
            if whole.rank <= loosest.rank:  # what keeps it from there is a part of it
                return self._looked_at_closely(looks, whole)
            error, most = told_apart(worst, self._limit(loosest))
            return wrong(
                f"has the precision of tier {tier} (error {error} of the signal), and "
                f"{loosest} was asked for (up to {most})"
            )
        return self._looked_at_closely(looks, tier)

    def _too_far(self, worst: float, limit: float) -> Verdict:
        shipped = max(self._exam.reference_errors, default=0.0)
        # Where half is not offered, wrong answers are as near as its own.
        offered = Tier.HALF in self._asked and all(Tier.HALF in s.limits for s in self._scales)
        half = self._exam.half_noise
        bfloat16 = half, min(AS_GOOD * half, ROUNDED)
        own = {"torch's own flags": (shipped, AS_GOOD * shipped)}
        if offered:
            own["bfloat16"] = bfloat16
        said, end = told_apart(worst, limit)
        for arithmetic, (error, most) in own.items():
            if limit < worst <= most:
                return Verdict(
                    EvalStatus.JUDGE_ERROR,
                    f"error {said} of the signal is that of the reference itself under "
                    f"{arithmetic} ({error:.1e}): at this precision the task tells nothing; only "
                    f"programs within {end} can be judged",
                )
        unoffered = Tier.HALF in self._asked and not offered and worst <= bfloat16[1]
        return wrong(
            f"error {said} of the signal is over {end}, the loosest limit here"
            + (NOT_OFFERED if unoffered else "")
        )

    def _looks(self, answers: Answers, found: Sequence[Sequence[LeafError]]) -> list[Look]:
        """A close look at each float leaf."""
        looks = []
        for i, leaf in zip(self._floats, found, strict=True):
            truths = [t[i] for t in self._exam.truths]
            moves = not all(torch.equal(truths[0], t) for t in truths[1:])
            looks.append(
                Look(
                    leaf=i,
                    spike=max(f.spike for f in leaf),
                    local=max(f.local for f in leaf),
                    local_half=max(f.local_half for f in leaf),
                    follows=correlation([a[i] for a in answers], truths) if moves else 1.0,
                )
            )
        return looks

    def _in_each_part(self, errors: Sequence[float], looks: Sequence[Look]) -> Tier:
        """The strictest tier earned as a whole at which no part fails; else the loosest earned."""
        ends = list(zip(errors, self._scales, strict=True))
        earned = [t for t in Tier if all(t in s.limits and e <= s.limits[t] for e, s in ends)]
        return next((t for t in earned if not self._looked_at_closely(looks, t)), earned[-1])

    def _looked_at_closely(self, looks: Sequence[Look], tier: Tier) -> Verdict | None:
        for look in looks:
            if look.spike > SPIKE:
                return wrong(f"an element is off by more than {SPIKE:.0f} signals")
            allowed = self._local_limit(look.leaf, tier)
            local = _local(look, tier)
            if local > allowed:
                off, most = told_apart(local, allowed)
                return wrong(
                    f"a part of its output is off by {off} of its own size or signal, "
                    f"over {most} for {LOCAL_ELEMENTS} elements at tier {tier}"
                )
            if look.follows < MIN_CORRELATION[tier]:
                return wrong("its output does not follow its input")
        return None

    def _local_limit(self, leaf: int, tier: Tier) -> float:
        """What a stretch may be off by: a multiple of the tier's limit, or as the reference is.

        Of no more than CAP: half may reach further with the whole, but a stretch that is dead, or
        the mean over inputs, is never within it, nor within twice as much while timed.
        """
        own = self._exam.reference_locals[leaf]
        return LOCAL_K * max(min(self._exam.scales[leaf].limits.get(tier, CAP), CAP), own)

    def _limit(self, tier: Tier) -> float:
        """The smallest limit of the tier over leaves; of the loosest there is, if it is absent."""
        limits: list[Mapping[Tier, float]] = [s.limits for s in self._scales if s.limits]
        return min((x.get(tier, max(x.values())) for x in limits), default=CAP)

    def _whole_numbers_differ(self, answers: Answers) -> str:
        """How many elements of an integer or boolean leaf do; empty where near ties explain it.

        Right is what the float64 answer or the float32 reference's has, and, where up to eight
        differ, what nearby inputs make of them. Of 10,000 that move with the input one more may
        differ unexplained: near ties of two inputs hardly ever share a stretch, and none is likely
        in the last one. What was left out does, and a tail that was forgotten is there.
        """
        for i in set(range(len(self._slots))) - set(self._floats):
            hits: torch.Tensor | None = None
            most = TIES * self._exam.scales[i].moves
            triples = zip(answers, self._exam.truths, self._exam.references, strict=True)
            for call, (answer, truth, reference) in enumerate(triples):
                a = answer[i]
                differ = (a != truth[i].to(a.device)) & (a != reference[i].to(a.device))
                differ = self._ties.decided(call, i, a, differ)
                if not are_ties(differ, most):
                    return f"{int(differ.sum())} of {differ.numel()}"
                hit = stretches_with(differ).int()
                hits = hit if hits is None else hits + hit
            if hits is not None and hits.numel() and (int(hits.max()) > 1 or int(hits[-1])):
                return f"few of {self._slots[i].count}, at one place more than once or in the last"
        return ""

    def _legacy(self, answers: Answers) -> LegacyVerdicts:
        pairs = [
            (a, r)
            for mine, reference in zip(answers, self._exam.references, strict=True)
            for a, r in zip(mine, reference, strict=True)
        ]
        strict = all(allclose(a, r, KERNELBENCH_TOLERANCE) for a, r in pairs)
        # Whoever is within the smaller tolerance is within the larger.
        loose = strict or all(allclose(a, r, PIKE_TOLERANCE) for a, r in pairs)
        return LegacyVerdicts(pike=loose, kernelbench=strict)


def _measured(answer: torch.Tensor, truth: torch.Tensor, scale: LeafScale) -> LeafError:
    found = compare(answer, truth, scale.signal, scale.grain)
    return replace(found, error=found.error / scale.grown(found.size))


def _local(seen: LeafError | Look, tier: Tier) -> float:
    """What the worst stretch is off by, as the tier has it."""
    return seen.local_half if tier is Tier.HALF else seen.local


def _as_seen_at(tier: Tier, scale: LeafScale) -> LeafScale:
    """The scale with the grain that the tier has."""
    if tier is not Tier.HALF or scale.grain is None:
        return scale
    return replace(scale, grain=in_half(scale.grain, scale.signal))


def too_coarse(tally: Tally) -> str:
    """How timed calls that count are too coarse for their tier; empty where they are not."""
    if tally.looser:
        return f"{tally.looser} of {tally.calls} calls are what the next tier alone allows"
    if tally.part <= COARSE:
        return ""
    return (
        f"{tally.coarse} of {tally.calls} calls are further from the reference beside them than "
        f"most may be, and {COARSE:.0%} may; the worst is {tally.furthest}"
    )


def wrong(message: str) -> Verdict:
    """The verdict that the candidate's answers are wrong."""
    return Verdict(EvalStatus.WRONG_RESULT, message)
