"""One candidate, from its runner's start to a verdict.

Order: import, construct with the judge's weights, secret inputs, the same input again after
others, timing, other weights. Each answer is held against float64. A candidate's failure ends as
an `Outcome`; an exception out of here is the judge's own and becomes JUDGE_ERROR.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pike_hpc.evaluate.correctness import UNEQUAL, LeafError, unequal
from pike_hpc.evaluate.judge_cores import on_own_core, spin_cpus
from pike_hpc.evaluate.judge_drain import Beside, Solitude
from pike_hpc.evaluate.judge_exam import Exam, call, has_changed
from pike_hpc.evaluate.judge_frame import is_float
from pike_hpc.evaluate.judge_guard import TaskWatch
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_marks import KEEPS_STATE, Marker, Verdict, too_coarse, wrong
from pike_hpc.evaluate.judge_memory import unwritten, views
from pike_hpc.evaluate.judge_outcome import Outcome, as_timing
from pike_hpc.evaluate.judge_probe import Probe, Weights
from pike_hpc.evaluate.judge_profile import read_sheet
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_side import WrongAnswer
from pike_hpc.evaluate.judge_spot_checks import DOUBTS, Spotted, most_of
from pike_hpc.evaluate.judge_timing import Busy, NoisyLane, Stopwatch
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.evaluate.nvml_guard import Guard
from pike_hpc.evaluate.runner import Code, Op, Source, kept_answers
from pike_hpc.evaluate.statistics import Estimate, StopRule
from pike_hpc.records import EvalRequest, EvalStatus

FOLLOWS = 0.03
"""Part of what changed weights change that an answer may be off by."""
KEPT_K = 2.0
"""Times a tier's limit, and a fresh model's error, that the living one is off by where it keeps
some of the weights that it had."""
RANGE_S = 5.0
"""Beyond what loading and the first call took: for each answer to an input beyond the task's."""
PROFILE_S, PROFILE_CALL_MS = 5.0, 1000.0
"""How long a candidate may profile itself, and from when on a call is too slow to be repeated."""
WHOLE_FOLLOWS = 0.25
"""The same of whole numbers that changed weights change: few of them make a coarse measure."""


class NeedSeed(Exception):
    """The candidate has no place for the weights: judge it with plain seeded ones.

    Or it has places that were guessed and answered wrongly; then `verdict` says how.
    """

    def __init__(self, verdict: Verdict | None = None) -> None:
        super().__init__("weights by seed")
        self.verdict = verdict


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
        self._truth, self._exam = truth, exam
        self._link, self._outcome = link, outcome
        self._marker = Marker(truth, exam, request.tiers)
        self._slots = truth.frame.output_slots
        self.calls = 0
        self.guessed = False
        """Whether its weights are where their shapes and order say, which may be wrong."""
        self._as_first = True
        """Whether it lives with the judging weights."""
        self._moves: list[float] = []
        self._off: list[float] = []
        """What it was off by under the probe's weights, for each float leaf."""
        self._followed_by: list[float] = []
        """The same of a living model that followed."""

    def build(self) -> None:
        """Import, construct, give weights. Raises NeedSeed, RunnerFailed."""
        self._outcome.build_s = self._link.do(Op.IMPORT)
        self._outcome.load_s = self._load(self._truth.weights, Source.STATE)

    def load_by_seed(self) -> None:
        """Construct from a seed alone, after `build` raised NeedSeed. Raises RunnerFailed."""
        self._outcome.load_s = self._load(self._truth.weights, Source.SEED)

    def answer(self) -> None:
        """Answer the exam and be marked. Raises Verdict, RunnerFailed."""
        answers = []
        keeps = kept_answers(buffer_bytes(self._slots))
        for i, packed in enumerate(self._exam.inputs):
            leaves, latency_ms = self._call(packed)
            answers.append(leaves)
            if i == 0:
                self._outcome.first_call_s = latency_ms / 1e3
            if i + 1 == keeps:
                self._look_for_aliases(answers[0], i)
        mark = self._marker.mark(answers)
        self._outcome.correctness = mark.correctness
        if mark.refusal is not None:
            raise mark.refusal
        again, _ = self._call(self._exam.inputs[0])
        if not self._marker.within(again, mark.tier):
            raise wrong("answers the same input differently after other inputs")
        if any(not torch.equal(a, b) for a, b in zip(again, answers[0], strict=True)):
            self._outcome.tags.append("nondeterministic")
        self._answer_in_turn()
        self._outcome.tier = mark.tier

    def _answer_in_turn(self) -> None:
        """Answer the exam once more, with state that stays. Raises Verdict, RunnerFailed.

        Judged as loosely as under changed weights: rounding adds up in what is kept.
        """
        for number, right in enumerate(self._exam.in_turn):
            answer, _ = self._call(self._exam.inputs[number], goes_on=number > 0)
            errors = self._marker.errors([answer], [right])
            afresh = [self._truth.near(t) for t in self._exam.truths[number]]
            moved = self._marker.errors([afresh], [right])
            bounds = zip(errors, moved, self._marker.loosest(), strict=True)
            if any(error > max(bound, FOLLOWS * far) for error, far, bound in bounds):
                raise wrong(
                    "leaves something else to its next call than the reference does; "
                    f"{KEEPS_STATE}, and copy inputs that you keep"
                )

    def time(
        self,
        reference: RunnerLink,
        rule: StopRule,
        secrets: Secrets,
        guards: TaskWatch,
        solitude: Solitude,
        *,
        bounded: bool,
    ) -> None:
        """Measure the speedup, alone on the device; `bounded`: see `Null`.

        Raises Verdict, RunnerFailed.
        """
        assert self._outcome.tier is not None
        drawn = iter(range(1 << 62))
        spun = spin_cpus(self._truth.device.type)
        watch = Stopwatch(
            reference,
            self._link,
            lambda count: self._truth.pack_fresh(secrets.seed("window", next(drawn)), count),
            self._marker.tolerance(self._outcome.tier),
            self._slots,
            solitude.company,
            checks=self._spot_checks(),
            doubts=self._spot_checks(DOUBTS),
            bounded=bounded,
            goes_on=bool(self._exam.in_turn),
            on_cpu=self._truth.device.type == "cpu",
            spun=spun,
        )

        def measure(guard: Guard) -> tuple[Estimate, tuple[str, ...]]:
            watch.settle()
            with on_own_core(spun[0]):
                (found, tags), beside = solitude.during(
                    (reference.number, self._link.number), lambda: watch.measure(rule, guard)
                )
            return found, tags if beside is Beside.NOBODY else (*tags, "noisy")

        try:
            found, tags, clocks = guards.timed(measure)
        except WrongAnswer as how:
            raise wrong(f"answered wrongly while it was timed: {how}") from None
        except Busy as busy:
            idle = f"worked while it should have been idle: {busy}"
            raise Verdict(EvalStatus.REJECTED, idle) from None
        except NoisyLane as noise:
            raise Verdict(EvalStatus.JUDGE_ERROR, f"noisy lane: {noise}") from None
        self._hold_to_tier(watch)
        self._outcome.timing = as_timing(found, clocks)
        self._outcome.tags.extend(tags)

    def _spot_checks(self, times: int = 1) -> int:
        """How many timed calls are held against float64 afterwards, drawn or in doubt."""
        if self._truth.legacy or self._truth.large or self._exam.in_turn:
            return 0
        pair_bytes = buffer_bytes(self._truth.frame.input_slots) + buffer_bytes(self._slots)
        return most_of(pair_bytes, self._exam.cost_s / len(self._exam.inputs), times)

    def _hold_to_tier(self, watch: Stopwatch) -> None:
        """Loosen the tier until what was timed is as fine as it says. Raises Verdict."""
        tier, correctness = self._outcome.tier, self._outcome.correctness
        assert tier is not None
        assert correctness is not None
        if why := too_coarse(watch.tally):
            tier, correctness = self._marker.loosened(tier, correctness, why)
        for seen in watch.spotted:
            errors = self._errors(seen)
            while why := self._marker.broken_in_checks(errors, tier):
                tier, correctness = self._marker.loosened(tier, correctness, why)
        self._outcome.tier, self._outcome.correctness = tier, correctness

    def _errors(self, seen: Spotted) -> list[list[LeafError]]:
        """Of each float leaf, what one timed answer was off by."""
        truth = self._truth.answers_to(seen.packed.cpu())
        return self._marker.leaf_errors([views(self._slots, seen.answer)], [truth])

    def change_weights(self) -> None:
        """Give it other weights: its answers must follow. Raises Verdict, RunnerFailed."""
        probe = self._truth.probe
        by_state = self._truth.by is WeightsBy.STATE
        if by_state and not self._truth.legacy:
            if self._living_follows(probe):
                self._as_first = probe.mixture is not None
                self._followed_by = self._off
                return
            self._outcome.tags.append("caches_weights")
        self._as_first = False
        self._load(probe.weights, Source.OTHER if by_state else Source.SEED)
        if not self._follows(probe, probe.truth):
            raise wrong(
                "a fresh ModelNew with other weights answers wrongly: does it keep something of "
                "the first ones outside of the model?"
            )

    def look_beyond(self) -> None:
        """Ask it inputs beyond the task's own: a tag where it is lost at one of them.

        No reason for a refusal, however it fails; what the tag says must hold, so at the coarser
        tiers only where such a precision can be right.
        """
        wide, tier = self._exam.wide, self._outcome.tier
        looks = () if wide is None else wide.asked_of(tier)
        if not looks:
            return
        given_s = len(looks) * RANGE_S + 2 * (self._outcome.load_s + self._outcome.first_call_s)
        self._link.allow(given_s)
        try:
            if not self._as_first:
                by_state = self._truth.by is WeightsBy.STATE
                self._load(self._truth.weights, Source.STATE if by_state else Source.SEED)
            # A usual one first: what it keeps of its inputs is kept then.
            call(self._link, self._truth, self._exam.inputs[0])
            answers = (call(self._link, self._truth, look.packed)[0] for look in looks)
            pairs = zip(looks, answers, strict=True)
            lost = any(look.grossly_wrong(answer, tier) for look, answer in pairs)
        except (RunnerFailed, NeedSeed):
            lost = True
        if lost:
            self._outcome.tags.append("narrow_range")

    def profile(self) -> None:
        """Have it profile itself, for the search.

        Whatever comes of it is no part of the verdict: a runner that fails, hangs or writes
        nonsense has no profile.
        """
        timing = self._outcome.timing
        assert timing is not None
        if timing.candidate_ms > PROFILE_CALL_MS:
            return
        try:
            found = read_sheet(self._link.profile(PROFILE_S), timing.candidate_ms)
        except RunnerFailed:
            return
        if found is not None:
            self._outcome.profile, device_ms = found
            self._outcome.timing = replace(timing, device_ms=device_ms)

    def look_closer(self) -> None:
        """Tag a living model that keeps a little of its first weights, too little to refuse it for.

        What moves the answer by less than FOLLOWS: a fresh model is nearer to the truth then. One
        is made only where the living one was off by more than its tier explains, and after all
        else, for it may fail: that says nothing.
        """
        assert self._outcome.tier is not None
        probe = self._truth.probe
        limits = [KEPT_K * limit for limit in self._marker.limits(self._outcome.tier)]
        off = list(zip(self._followed_by, limits, strict=False))
        if all(error <= limit for error, limit in off):
            return
        self._link.allow(RANGE_S + 2 * (self._outcome.load_s + self._outcome.first_call_s))
        try:
            self._load(probe.weights, Source.OTHER)
            answer = call(self._link, self._truth, probe.packed)[0]
        except (RunnerFailed, NeedSeed):
            return
        fresh = self._marker.errors([answer], [probe.truth])
        pairs = zip(off, fresh, strict=True)
        if any(error > max(KEPT_K * other, limit) for (error, limit), other in pairs):
            self._outcome.tags.append("caches_weights")

    def _living_follows(self, probe: Probe) -> bool:
        """Whether the living model takes other weights, then a mixture, then the first again."""
        steps = [(Source.OTHER, 0, probe.truth)]
        if probe.mixture is not None:
            steps.append((Source.MIXED, probe.mixture.bits, probe.mixture.truth))
            steps.append((Source.STATE, 0, probe.stale))
        return all(
            self._reload(source, bits) and self._follows(probe, truth)
            for source, bits, truth in steps
        )

    def _follows(self, probe: Probe, truth: Sequence[torch.Tensor]) -> bool:
        """Whether it answers the probe's input as the reference does under its weights of now.

        Nearer to the truth than a part of what the whole change of weights does: other weights
        may be a little harder than the exam's, so a tier's limit alone would refuse honest ones.
        """
        answer, _ = self._call(probe.packed)
        errors = self._marker.errors([answer], [truth])
        if truth is probe.truth:
            self._off = errors
        bounds = zip(errors, self._moved(probe), self._marker.loosest(), strict=True)
        near = all(error <= max(bound, FOLLOWS * far) for error, far, bound in bounds)
        return near and self._whole_numbers_follow(answer, truth, probe)

    def _moved(self, probe: Probe) -> list[float]:
        """What changed weights do to each float leaf of the answer to the probe's input."""
        if not self._moves:
            stale = [self._truth.near(t) for t in probe.stale]
            self._moves = self._marker.errors([stale], [probe.truth])
        return self._moves

    def _whole_numbers_follow(
        self, answer: Sequence[torch.Tensor], truth: Sequence[torch.Tensor], probe: Probe
    ) -> bool:
        """Of a mask or an argmax, near ties may fall the other way in other arithmetic."""
        for i, slot in enumerate(self._slots):
            moved = 0.0 if is_float(slot) else unequal(probe.stale[i], probe.truth[i])
            if moved and unequal(answer[i], truth[i]) > max(UNEQUAL, WHOLE_FOLLOWS * moved):
                return False
        return True

    def _reload(self, source: Source, bits: int) -> bool:
        """Whether the living model takes the weights. Raises RunnerFailed.

        One that folded them at its first call may have dropped their places.
        """
        try:
            self._link.do(Op.RELOAD, source=source, seed=bits)
        except RunnerFailed as failed:
            if failed.kind != "code":
                raise
            return False
        return True

    def _load(self, weights: Weights, source: Source) -> float:
        start = time.perf_counter()
        self.guessed = False
        try:
            return self._link.do(Op.LOAD, source=source, seed=weights.constructor_seed)
        except RunnerFailed as failed:
            if failed.code is Code.NEED_SEED and source is not Source.SEED:
                raise NeedSeed from None
            if failed.code is not Code.PLACED or source is Source.SEED:
                raise
            self.guessed = True
            return time.perf_counter() - start

    def _call(
        self, packed: torch.Tensor, *, goes_on: bool = False
    ) -> tuple[list[torch.Tensor], float]:
        self.calls += 1
        leaves, raw, latency_ms = call(self._link, self._truth, packed, goes_on=goes_on)
        if self._link.inputs_changed([packed]):
            raise wrong("changes its inputs, which the caller owns")
        left = unwritten(self._slots, raw)
        if left > 0:
            raise wrong(f"left {max(left, 1e-4):.2%} of its output unwritten")
        return [self._truth.near(leaf) for leaf in leaves], latency_ms

    def _look_for_aliases(self, first: Sequence[torch.Tensor], last: int) -> None:
        """Whether the answer to the first call still is what it was, after call `last`.

        Nobody is told of what the reference does as well, such as returning its input.
        """
        if self._exam.aliased:
            return
        try:
            changed = has_changed(self._link, self._truth, self._exam.inputs[last], first)
        except RunnerFailed as failed:
            if failed.kind != "code":
                raise
            # torch's own graphs refuse to read an output that the next replay has overwritten.
            changed = True
        if changed:
            self._outcome.tags.append("aliased_output")
