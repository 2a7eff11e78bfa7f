"""The judge: makes results of candidates, one order at a time.

It never spawns, never imports a candidate's text and never parses a candidate's bytes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.built import NOTHING, Built
from pike_hpc.evaluate.judge_anchor import Alone, time_alone
from pike_hpc.evaluate.judge_bench import Bench, Crowded, NotAdmitted, Unfit
from pike_hpc.evaluate.judge_context import settle
from pike_hpc.evaluate.judge_cores import on_own_core, spin_cpus
from pike_hpc.evaluate.judge_drain import Beside, Company, Solitude, probe_on
from pike_hpc.evaluate.judge_environment import environment
from pike_hpc.evaluate.judge_failures import (
    not_started,
    ran_short,
    reference_failed,
    task_failed,
)
from pike_hpc.evaluate.judge_guard import Guards, TaskWatch, TimeAlone
from pike_hpc.evaluate.judge_host import Ending, Host
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_marks import Verdict
from pike_hpc.evaluate.judge_outcome import Outcome, conclude, no_seed
from pike_hpc.evaluate.judge_physics import Physics
from pike_hpc.evaluate.judge_plan import stop_rule
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_streams import Streams
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.evaluate.judge_verdict import Examiner, NeedSeed
from pike_hpc.evaluate.judge_warm import Warm
from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.nvml_guard import Guard
from pike_hpc.evaluate.physics import Work
from pike_hpc.evaluate.runner.cuda_driver import DeviceMemoryError
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import (
    EvalRequest,
    EvalResult,
    EvalStatus,
    Isolation,
    Task,
    Variant,
)

T = TypeVar("T")

CACHE_S = 10.0
"""For packing what compilers left: tens of megabytes at worst."""


class Judge:
    """Carries out orders one at a time."""

    def __init__(
        self,
        host: Host,
        device: torch.device,
        isolation: Isolation,
        spares: bool,
        settle: Callable[[torch.device], None] = settle,
        warm: Warm | None = None,
        guards: Guards | None = None,
        streams: Streams | None = None,
    ) -> None:
        """A judge on `device`.

        `settle` waits for the device and raises where that answers no more; `warm` is kept;
        `guards` and `streams` are the device's own where there are none.
        """
        self._host, self._device, self._isolation = host, device, isolation
        self._settle = settle
        self._solitude = Solitude(host, Company(probe_on(device)))
        self.short = False
        """Whether the last order failed for want of memory."""
        self.crowded = False
        """Whether that befell a runner before it began."""
        self.refused = False
        """Whether it failed because its task is not admitted."""
        self.left = False
        """Whether it left a compile cache for the lane."""
        self._keep = False
        self._clean = True
        """Whether everything that was to be forgotten could be."""
        self._warm = warm or Warm(host, device, spares)
        self._physics, self._guards = Physics.of(device), guards or Guards.of(device)
        self._streams = streams or Streams(device.type)
        self._environment = environment(device)
        if device.type == "cuda" and self._physics.why_not:
            sys.stderr.write(f"nothing is too fast to be believed: {self._physics.why_not}\n")
        if device.type == "cuda" and self._guards.why_not:
            sys.stderr.write(f"clocks are not read: {self._guards.why_not}\n")

    def evaluate(
        self, request: EvalRequest, built: Built = NOTHING, *, keep: bool = False
    ) -> EvalResult:
        """The result for one candidate; only a broken lane raises.

        `keep`: leave what its compilers made for the lane, where it has passed without that.
        """
        outcome, tail = Outcome(), ""
        self._begin()
        self._keep = keep
        try:
            try:
                tail = self._evaluate(request, built, outcome)
            except (RunnerFailed, DeviceMemoryError) as failed:
                if not self._warm.moves_to_host(failed):
                    raise
                outcome = Outcome()
                tail = self._evaluate(request, built, outcome)
        except RunnerFailed as failed:
            ending = self._forget(request.task)
            self.short = ran_short(failed, ending)
            outcome.status = EvalStatus.JUDGE_ERROR
            outcome.message = reference_failed(failed, ending)
        except Unfit as error:
            self.short, self.refused = ran_short(error), isinstance(error, NotAdmitted)
            self.crowded = isinstance(error, Crowded)
            outcome.status, outcome.message = EvalStatus.JUDGE_ERROR, str(error)
        except (Exception, SystemExit) as error:  # whatever the task's own code raises
            traceback.print_exc()
            self._forget(request.task)
            self.short = ran_short(error)
            outcome.status = EvalStatus.JUDGE_ERROR
            outcome.message = f"the task could not be judged: {task_failed(error, request.task)}"
        self._shed()
        return self._record(request, outcome, tail)

    def admit(self, task: Task, small_only: bool) -> Admission:
        """What is to be said of a task before anyone is judged on it."""
        start = time.monotonic()
        self._begin()
        try:
            bench = self._warm.bench(task)
            if small_only and (why := bench.too_large()):
                return Admission(task_digest=task.digest, admitted=None, reason=why)
            admission = self._warm.truth(bench, WeightsBy.STATE)[1].admission
            bench.release()
            return admission
        except (Exception, SystemExit) as error:  # whatever the task's own code raises
            traceback.print_exc()
            self._forget(task)
            return Admission(
                task_digest=task.digest,
                admitted=False,
                reason=task_failed(error, task),
                seconds=round(time.monotonic() - start, 2),
            )
        finally:
            self._shed()

    def release(self) -> None:
        """Let go of the device's memory; what was found out about tasks stays."""
        self._begin()
        self._warm.rest()

    def is_sound(self) -> bool:
        """Whether it can go on. What a task's own code does may end its context on the GPU."""
        try:
            self._settle(self._device)
        except Exception:  # of whatever kind torch makes of the driver's word
            traceback.print_exc()
            return False
        return self._clean

    def _begin(self) -> None:
        """Nothing is to be said of this order yet."""
        self.short = self.crowded = self.refused = self.left = False

    def _forget(self, task: Task) -> Ending | None:
        """Keep nothing of a task that something went wrong with; how its reference ended."""
        return self._unless_ended(lambda: self._warm.forget(task))

    def _shed(self) -> None:
        """Give back memory that nobody needs now."""
        self._unless_ended(self._warm.shed)

    def _unless_ended(self, let_go: Callable[[], T]) -> T | None:
        """What may fail in a context that has ended: the verdict is known all the same."""
        try:
            return let_go()
        except Exception:
            traceback.print_exc()
            self._clean = False
            return None

    def _evaluate(self, request: EvalRequest, built: Built, outcome: Outcome) -> str:
        """Judge it, twice where it turns out to need more of the GPU; the end of its log."""
        role = self._streams.role(request)
        tail = self._evaluate_as(role, request, built, outcome)
        if outcome.status is not EvalStatus.PASSED:
            return tail
        if self._streams.note(request, outcome.profile) and role.one_connection:
            outcome.begin_again()
            self.left = False
            tail = self._evaluate_as(RunnerRole.WIDE, request, built, outcome)
        return tail

    def _evaluate_as(
        self, role: RunnerRole, request: EvalRequest, built: Built, outcome: Outcome
    ) -> str:
        self._host.phase("start")
        link = self._warm.spares.take(role)
        try:
            bench = self._warm.bench(request.task)
            bench.start()
            try:
                self._judge_either_way(request, built, bench, link, outcome)
            except Exception as error:
                ending = self._unless_ended(functools.partial(bench.ended, error))
                if not ran_short(error, ending) or not (said := bench.overdrawn(link)):
                    raise
                traceback.print_exc()
                self._forget(request.task)
                outcome.status = EvalStatus.OUT_OF_MEMORY
                outcome.message = f"left no room to judge it in: {said}"
        finally:
            candidate: Ending = link.end()
        return candidate.tail

    def _judge_either_way(
        self,
        request: EvalRequest,
        built: Built,
        bench: Bench,
        link: RunnerLink,
        outcome: Outcome,
    ) -> None:
        """Judge it on weights by state, and by seed where it needs that."""
        try:
            self._judge(request, built, bench, link, WeightsBy.STATE, outcome)
        except NeedSeed as need:
            outcome.begin_again()
            outcome.tags.append("weights_by_seed")
            self._judge(request, built, bench, link, WeightsBy.SEED, outcome, need.verdict)

    def _judge(
        self,
        request: EvalRequest,
        built: Built,
        bench: Bench,
        link: RunnerLink,
        by: WeightsBy,
        outcome: Outcome,
        so_far: Verdict | None = None,
    ) -> None:
        """Judge it on weights of one kind; `so_far` is what those of the other kind came to.

        Raises:
            NeedSeed: its weights are not where they should be, and may be by seed.
        """
        truth, yardstick = self._warm.truth(bench, by)
        if not yardstick.admission.admitted:
            reason = yardstick.admission.reason
            if by is WeightsBy.STATE:
                raise NotAdmitted(f"the task is not admitted: {reason}")
            no_seed(outcome, reason, so_far)
            return
        work = bench.work(by, self._physics)
        bounded = self._physics.bounds_copies(work)
        # Labels of an evaluation's seeds are fresh random bytes: no seed is ever drawn twice.
        secrets = Secrets(os.urandom(32))
        exam, reference = self._warm.reference(bench, by, secrets)
        examiner = Examiner(request, truth, exam, link, outcome)
        alone = functools.partial(
            self._time_alone,
            reference,
            truth,
            secrets,
            bounded=bounded,
            goes_on=bool(exam.in_turn),
        )
        try:
            watch = self._guards.task((request.task.digest, by))
            if by is WeightsBy.STATE:
                watch.learn(functools.partial(alone, "alone"))
                link.attach(bench.shared(by), request.candidate_source, built)
                link.allow(request.timeout_s)
            else:
                watch.take(self._guards.task((request.task.digest, WeightsBy.STATE)).anchor)
            self._examine(request, examiner, reference, secrets, by, watch, bounded=bounded)
            self._let_pass(outcome, link, work, watch, functools.partial(alone, "without"))
        except Verdict as verdict:
            if examiner.guessed and verdict.status is EvalStatus.WRONG_RESULT:
                raise NeedSeed(verdict) from None
            outcome.status, outcome.message = verdict.status, verdict.message
        except RunnerFailed as failed:
            if failed.runner != link.number:
                raise
            if failed.op is None:
                raise not_started(failed, link.end(1.0)) from None
            conclude(outcome, failed, link, examiner.calls, request.timeout_s)

    def _examine(
        self,
        request: EvalRequest,
        examiner: Examiner,
        reference: RunnerLink,
        secrets: Secrets,
        by: WeightsBy,
        watch: TaskWatch,
        *,
        bounded: bool,
    ) -> None:
        self._host.phase("build")
        # The next ones start while this one is examined.
        self._warm.spares.fill(all_wide=self._streams.blind)
        if by is WeightsBy.STATE:
            examiner.build()
        else:
            examiner.load_by_seed()
        self._host.phase("correctness")
        examiner.answer()
        rule = stop_rule(self._device.type, again=bool(request.retime))
        examiner.time(reference, rule, secrets, watch, self._solitude, bounded=bounded)
        self._host.phase("probes")
        examiner.change_weights()
        examiner.look_beyond()
        self._host.phase("profile")
        examiner.profile()
        examiner.look_closer()

    def _let_pass(
        self,
        outcome: Outcome,
        link: RunnerLink,
        work: Work | None,
        watch: TaskWatch,
        without: TimeAlone,
    ) -> None:
        """The verdict on one that is right and timed, unless it is too fast.

        Args:
            outcome: what was found so far; the verdict goes there.
            link: the candidate's runner; where its timing is in doubt it has ended afterwards.
            work: of a call.
            watch: of the task.
            without: times the reference without it.

        Raises:
            Verdict: it is too fast.
            RunnerFailed: of the reference, without the candidate: there is no verdict.
        """
        found, tier = outcome.timing, outcome.tier
        assert found is not None
        assert tier is not None
        timing = self._physics.judged(found, work, tier)
        cache = self._cache_of(link) if self._keep and not link.had_cache else b""
        if watch.doubts(timing):
            link.end()
            timing = watch.believed(timing, without)
        if cache:
            self._leave(cache)
        outcome.timing = timing
        outcome.status = EvalStatus.PASSED
        outcome.message = (
            f"{timing.speedup:.2f}x the reference's speed "
            f"({timing.ci95[0]:.2f} to {timing.ci95[1]:.2f}), tier {tier}"
        )

    def _cache_of(self, link: RunnerLink) -> bytes:
        """What its compilers made; the last thing that it is asked."""
        with contextlib.suppress(RunnerFailed, OSError):
            return link.compile_cache(CACHE_S)
        return b""

    def _leave(self, cache: bytes) -> None:
        """Have the lane keep it for the next run of the same text. The verdict is known."""
        with contextlib.suppress(OSError):
            self._host.leave(cache)
            self.left = True

    def _time_alone(
        self,
        reference: RunnerLink,
        truth: Truth,
        secrets: Secrets,
        label: str,
        guard: Guard,
        *,
        bounded: bool,
        goes_on: bool,
    ) -> tuple[Alone | None, bool]:
        """Latency of the reference and the constant, as `TimeAlone` tells them.

        On the core that timings beside a candidate are taken on. Inputs are drawn under `label`.
        """
        drawn = itertools.count()

        def fresh(count: int) -> Sequence[torch.Tensor]:
            return truth.pack_fresh(secrets.seed(label, next(drawn)), count)

        with on_own_core(spin_cpus(self._device.type)[0]):
            found, beside = self._solitude.during(
                (reference.number,),
                lambda: time_alone(reference, fresh, guard, bounded=bounded, goes_on=goes_on),
                attempts=1,
            )
        return found if beside is Beside.NOBODY else None, beside is not Beside.KERNELS

    def _record(self, request: EvalRequest, outcome: Outcome, tail: str) -> EvalResult:
        passed = outcome.status is EvalStatus.PASSED
        tags = list(outcome.tags)
        if request.task.variant is Variant.LEGACY:
            tags.append("legacy")
        return EvalResult(
            key=request.key,
            status=outcome.status,
            tier=outcome.tier if passed else None,
            tags=tuple(sorted(set(tags))),
            correctness=outcome.correctness,
            timing=outcome.timing if passed else None,
            profile=outcome.profile if passed else None,
            one_off=outcome.one_off,
            isolation=self._isolation,
            message=outcome.message,
            log_tail=clean(tail),
            environment=replace(self._environment, buffers=self._warm.place.value),
        )
