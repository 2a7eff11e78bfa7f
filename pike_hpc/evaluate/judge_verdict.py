"""One candidate, from its runner's start to a verdict.

Order: import, construct with the judge's weights, secret inputs, the same input again after
others, timing, other weights. Each answer is held against float64. A candidate's failure ends as
an `Outcome`; an exception out of here is the judge's own and becomes JUDGE_ERROR.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pike_hpc.evaluate.correctness import (
    CAP,
    MIN_CORRELATION,
    SPIKE,
    LeafScale,
    allclose,
    compare,
    correlation,
    tier_of,
)
from pike_hpc.evaluate.judge_admission import Yardstick, scale
from pike_hpc.evaluate.judge_failures import explain
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink, bytes_of, unwritten, views
from pike_hpc.evaluate.judge_timing import (
    PIKE_TOLERANCE,
    Busy,
    Stopwatch,
    Tolerance,
    WrongAnswer,
)
from pike_hpc.evaluate.judge_truth import Probe, Secrets, Truth, Weights, WeightsBy, is_float
from pike_hpc.evaluate.runner import Code, Op
from pike_hpc.evaluate.statistics import Estimate, StopRule
from pike_hpc.records import (
    Correctness,
    EvalRequest,
    EvalStatus,
    LegacyVerdicts,
    OneOff,
    Tier,
    Timing,
)
from pike_hpc.tasks.load import LEGACY_INPUT_SEED

SEEDS = 3
FOLLOWS = 0.1
"""Part of what changed weights change that an answer may be off by."""
EXIT_GRACE_S = 1.0
"""Between a runner's last descriptor closing and its exit status."""
UNMEASURABLE = 1e30
"""Stands for an error that is not finite, which a record can't hold."""


class Verdict(Exception):
    """The evaluation is over, without a pass."""

    def __init__(self, status: EvalStatus, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


AS_GOOD = 3.0
"""k of the tiers' limits: within this factor two errors are of the same precision."""


class NeedSeed(Exception):
    """The candidate has no place for the weights: judge it with plain seeded ones."""


@dataclass(slots=True)
class Outcome:
    """What was found so far; the record is made of it in the end."""

    status: EvalStatus = EvalStatus.JUDGE_ERROR
    message: str = ""
    tier: Tier | None = None
    tags: list[str] = field(default_factory=list)
    correctness: Correctness | None = None
    timing: Timing | None = None
    build_s: float = 0.0
    load_s: float = 0.0
    first_call_s: float = 0.0

    @property
    def one_off(self) -> OneOff:
        """Seconds paid once."""
        return OneOff(build_s=self.build_s, load_s=self.load_s, first_call_s=self.first_call_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The secret inputs of one evaluation with everything that is known about them."""

    inputs: tuple[torch.Tensor, ...]
    truths: tuple[list[torch.Tensor], ...]
    """Float64 answers, per input and leaf."""
    references: tuple[list[torch.Tensor], ...]
    """What the reference's runner answered."""
    scales: tuple[LeafScale, ...]
    reference_errors: tuple[float, ...]
    cost_s: float


def set_exam(truth: Truth, yardstick: Yardstick, reference: RunnerLink, secrets: Secrets) -> Exam:
    """Draw inputs, answer them in float64 and by the reference's runner. Raises RunnerFailed."""
    start = time.monotonic()
    seeds: tuple[int, ...] = (LEGACY_INPUT_SEED,) if truth.legacy else ()
    seeds += tuple(secrets.seed("exam", i) for i in range(SEEDS - len(seeds)))
    inputs = tuple(truth.pack(s) for s in seeds)
    truths = tuple(truth.answers(s) for s in seeds)
    references = tuple(call(reference, truth, x)[0] for x in inputs)
    slots = truth.frame.output_slots
    scales = tuple(
        LeafScale(signal=scale([t[i] for t in truths]), limits=yardstick.limits[i])
        for i in range(len(slots))
    )
    errors = tuple(
        max(
            compare(r[i], t[i], scales[i].signal).error
            for r, t in zip(references, truths, strict=True)
        )
        if is_float(slot)
        else 0.0
        for i, slot in enumerate(slots)
    )
    return Exam(
        inputs=inputs,
        truths=truths,
        references=references,
        scales=scales,
        reference_errors=errors,
        cost_s=time.monotonic() - start,
    )


def call(
    link: RunnerLink, truth: Truth, packed: torch.Tensor
) -> tuple[list[torch.Tensor], memoryview, float]:
    """One window: the answer's leaves, its raw bytes, its milliseconds. Raises RunnerFailed."""
    raw = torch.zeros(link.sizes[1], dtype=torch.uint8)
    answer = bytes_of(raw)
    latency_ms = link.window(Op.CALL, bytes_of(packed), answer)
    return views(truth.frame.output_slots, raw.numpy()), answer, latency_ms


class Examiner:
    """Examines one candidate's runner."""

    def __init__(
        self,
        request: EvalRequest,
        truth: Truth,
        exam: Exam,
        link: RunnerLink,
        outcome: Outcome,
    ) -> None:
        self._request, self._truth, self._exam = request, truth, exam
        self._link, self._outcome = link, outcome
        self._slots = truth.frame.output_slots
        self.calls = 0

    def build(self) -> None:
        """Import, construct, give weights. Raises NeedSeed, RunnerFailed."""
        self._outcome.build_s = self._link.do(Op.IMPORT)
        self._link.put_weights(self._truth.weights.tensors)
        self._outcome.load_s = self._load(self._truth.weights)

    def load_by_seed(self) -> None:
        """Construct from a seed alone, after `build` raised NeedSeed. Raises RunnerFailed."""
        self._outcome.load_s = self._load(self._truth.weights)

    def answer(self) -> None:
        """Answer the exam and be marked. Raises Verdict, RunnerFailed."""
        answers = []
        for i, packed in enumerate(self._exam.inputs):
            leaves, latency_ms = self._call(packed)
            answers.append(leaves)
            if i == 0:
                self._outcome.first_call_s = latency_ms / 1e3
            if i == 1:
                self._look_for_aliases(answers[0])
        tier, limit = self._mark(answers)
        again, _ = self._call(self._exam.inputs[0])
        errors = self._errors([again], self._exam.truths[:1])
        if not self._truth.legacy and not self._within(errors, tier):
            raise Verdict(
                EvalStatus.WRONG_RESULT, "answers the same input differently after other inputs"
            )
        if any(not torch.equal(a, b) for a, b in zip(again, answers[0], strict=True)):
            self._outcome.tags.append("nondeterministic")
        self._outcome.tier = tier
        assert limit > 0

    def time(self, reference: RunnerLink, rule: StopRule, secrets: Secrets) -> None:
        """Measure the speedup. Raises Verdict, RunnerFailed."""
        assert self._outcome.tier is not None
        drawn = iter(range(1 << 62))
        watch = Stopwatch(
            reference,
            self._link,
            lambda: self._truth.pack(secrets.seed("window", next(drawn))),
            self._tolerance(self._outcome.tier),
            self._slots,
        )
        try:
            found, tags = watch.measure(rule, random.Random(secrets.seed("bootstrap")))
        except WrongAnswer:
            raise Verdict(EvalStatus.WRONG_RESULT, "answered wrongly while it was timed") from None
        except Busy:
            raise Verdict(EvalStatus.REJECTED, "worked while it should have been idle") from None
        self._outcome.timing = as_timing(found)
        self._outcome.tags.extend(tags)

    def change_weights(self) -> None:
        """Give it other weights: its answers must follow. Raises Verdict, RunnerFailed."""
        probe = self._truth.probe
        self._link.put_weights(probe.weights.tensors)
        if self._truth.by is WeightsBy.STATE and not self._truth.legacy:
            if self._reload() and self._follows(probe):
                return
            self._outcome.tags.append("caches_weights")
        self._load(probe.weights)
        if not self._follows(probe):
            raise Verdict(
                EvalStatus.WRONG_RESULT, "a fresh ModelNew with other weights answers wrongly"
            )

    def _follows(self, probe: Probe) -> bool:
        """Whether it answers as the reference does under the probe's weights.

        Much nearer to the answer of these weights than that of the old ones is: other weights
        may be a little harder than the exam's, so a tier's limit alone would refuse honest ones.
        """
        answer, _ = self._call(probe.packed)
        errors = self._errors([answer], [probe.truth])
        moved = self._errors([probe.stale], [probe.truth])
        limits = [max(s.limits.values(), default=CAP) for s in self._float_scales()]
        return all(
            e <= max(bound, FOLLOWS * m) for e, m, bound in zip(errors, moved, limits, strict=True)
        )

    def _reload(self) -> bool:
        """Whether the living model takes the weights. Raises RunnerFailed.

        One that folded them at its first call may have dropped their places.
        """
        try:
            self._link.do(Op.RELOAD)
        except RunnerFailed as failed:
            if failed.kind != "code":
                raise
            return False
        return True

    def _load(self, weights: Weights) -> float:
        by_seed = self._truth.by is WeightsBy.SEED
        try:
            return self._link.do(Op.LOAD, by_seed=by_seed, seed=weights.constructor_seed)
        except RunnerFailed as failed:
            if failed.code is Code.NEED_SEED and not by_seed:
                raise NeedSeed from None
            raise

    def _call(self, packed: torch.Tensor) -> tuple[list[torch.Tensor], float]:
        self.calls += 1
        leaves, raw, latency_ms = call(self._link, self._truth, packed)
        if self._link.inputs_changed(bytes_of(packed)):
            raise Verdict(EvalStatus.WRONG_RESULT, "changes its inputs, which the caller owns")
        left = unwritten(self._slots, raw)
        if left > 0:
            raise Verdict(
                EvalStatus.WRONG_RESULT, f"left {max(left, 1e-4):.2%} of its output unwritten"
            )
        return leaves, latency_ms

    def _look_for_aliases(self, first: Sequence[torch.Tensor]) -> None:
        """Whether the answer to the first call still is what it was, after the second."""
        raw = torch.zeros(self._link.sizes[1], dtype=torch.uint8)
        self._link.window(Op.AGAIN, bytes_of(self._exam.inputs[1]), bytes_of(raw))
        again = views(self._slots, raw.numpy())
        if any(not torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            self._outcome.tags.append("aliased_output")

    def _mark(self, answers: Sequence[Sequence[torch.Tensor]]) -> tuple[Tier, float]:
        """The tier earned and its limit. Raises Verdict."""
        exam, outcome = self._exam, self._outcome
        errors = self._errors(answers, exam.truths)
        tier = tier_of(errors, self._float_scales())
        legacy = self._legacy(answers)
        worst = max(errors, default=0.0)
        shown = tier or Tier.HALF
        limit = self._limit(shown)
        outcome.correctness = Correctness(
            relative_error=min(worst, UNMEASURABLE),
            limit=limit,
            seeds=len(answers),
            reference_precision=self._truth.precision,
            legacy=legacy,
        )
        if self._truth.legacy:
            if not legacy.pike:
                raise Verdict(EvalStatus.WRONG_RESULT, "fails PIKE's allclose(1e-2)")
            return shown, limit
        self._refuse(answers, tier, worst, limit)
        assert tier is not None
        return tier, limit

    def _refuse(
        self,
        answers: Sequence[Sequence[torch.Tensor]],
        tier: Tier | None,
        worst: float,
        limit: float,
    ) -> None:
        if not math.isfinite(worst):
            raise Verdict(EvalStatus.WRONG_RESULT, "its output holds values that are not finite")
        if not self._whole_numbers_agree(answers):
            raise Verdict(EvalStatus.WRONG_RESULT, "an integer output differs from the reference's")
        shipped = max(self._exam.reference_errors, default=0.0)
        if tier is None and limit < worst <= AS_GOOD * shipped:
            raise Verdict(
                EvalStatus.JUDGE_ERROR,
                f"error {worst:.1e} of the signal is that of the reference itself under torch's "
                f"own flags ({shipped:.1e}): at this precision the task tells nothing; only "
                f"programs within {limit:.1e} can be judged",
            )
        if tier is None:
            raise Verdict(
                EvalStatus.WRONG_RESULT,
                f"error {worst:.1e} of the signal is over {limit:.1e}, the loosest limit here",
            )
        if all(asked.rank < tier.rank for asked in self._request.tiers):
            loosest = max(self._request.tiers, key=lambda t: t.rank)
            raise Verdict(
                EvalStatus.WRONG_RESULT,
                f"has the precision of tier {tier} (error {worst:.1e} of the signal), and "
                f"{loosest} was asked for (up to {self._limit(loosest):.1e})",
            )
        for i, slot in enumerate(self._slots):
            if not is_float(slot):
                continue
            pairs = zip(answers, self._exam.truths, strict=True)
            signal = self._exam.scales[i].signal
            if max(compare(a[i], t[i], signal).spike for a, t in pairs) > SPIKE:
                raise Verdict(
                    EvalStatus.WRONG_RESULT, f"an element is off by more than {SPIKE:.0f} signals"
                )
            truths = [t[i] for t in self._exam.truths]
            moves = not all(torch.equal(truths[0], t) for t in truths[1:])
            follows = correlation([a[i] for a in answers], truths) if moves else 1.0
            if follows < MIN_CORRELATION[tier]:
                raise Verdict(EvalStatus.WRONG_RESULT, "its output does not follow its input")

    def _errors(
        self,
        answers: Sequence[Sequence[torch.Tensor]],
        truths: Sequence[Sequence[torch.Tensor]],
    ) -> list[float]:
        """Worst error of each float leaf over the calls."""
        return [
            max(
                compare(a[i], t[i], self._exam.scales[i].signal).error
                for a, t in zip(answers, truths, strict=True)
            )
            for i, slot in enumerate(self._slots)
            if is_float(slot)
        ]

    def _float_scales(self) -> list[LeafScale]:
        pairs = zip(self._exam.scales, self._slots, strict=True)
        return [s for s, slot in pairs if is_float(slot)]

    def _limit(self, tier: Tier) -> float:
        """The smallest limit of the tier over leaves; of the loosest there is, if it is absent."""
        limits: list[Mapping[Tier, float]] = [s.limits for s in self._float_scales() if s.limits]
        return min((x.get(tier, max(x.values())) for x in limits), default=CAP)

    def _within(self, errors: Sequence[float], tier: Tier) -> bool:
        """Whether every leaf is within the limit of `tier` or of a looser one still needed."""
        if self._truth.legacy:
            return True
        found = tier_of(errors, self._float_scales())
        return found is not None and found.rank <= tier.rank

    def _whole_numbers_agree(self, answers: Sequence[Sequence[torch.Tensor]]) -> bool:
        """Integer and boolean leaves equal the float64 answer or the float32 reference's."""
        for i, slot in enumerate(self._slots):
            if is_float(slot):
                continue
            triples = zip(answers, self._exam.truths, self._exam.references, strict=True)
            if not all(bool(((a[i] == t[i]) | (a[i] == r[i])).all()) for a, t, r in triples):
                return False
        return True

    def _legacy(self, answers: Sequence[Sequence[torch.Tensor]]) -> LegacyVerdicts:
        pairs = [
            (a, r)
            for answer, reference in zip(answers, self._exam.references, strict=True)
            for a, r in zip(answer, reference, strict=True)
        ]
        return LegacyVerdicts(
            pike=all(allclose(a, r, PIKE_TOLERANCE) for a, r in pairs),
            kernelbench=all(allclose(a, r, 1e-4) for a, r in pairs),
        )

    def _tolerance(self, tier: Tier) -> Tolerance:
        """Both sides may be off: the candidate by its tier's limit, the reference by its own.

        A factor of two for inputs that are harder than the exam's.
        """
        limits = []
        for scale_, error in zip(self._exam.scales, self._exam.reference_errors, strict=True):
            own = scale_.limits.get(tier, CAP)
            limits.append(2 * (own + error))
        signals = tuple(s.signal for s in self._exam.scales)
        return Tolerance(signals=signals, limits=tuple(limits), pike=self._truth.legacy)


def as_timing(found: Estimate) -> Timing:
    """The record of an estimate."""
    return Timing(
        candidate_ms=found.candidate_ms,
        reference_ms=found.reference_ms,
        speedup=found.speedup,
        ci95=found.ci95,
        windows=found.windows,
    )


def conclude(
    outcome: Outcome, failed: RunnerFailed, link: RunnerLink, calls: int, allowed_s: float
) -> None:
    """Turn a failed candidate runner into status and message."""
    ending = link.end(EXIT_GRACE_S if failed.kind == "gone" else 0.0)
    outcome.status, outcome.message = explain(failed, ending, calls, allowed_s)
