"""The judge's process: takes orders from the lane, keeps references warm, makes results.

Run by the lane as `judge.main(fd)` with a socket; it never spawns, never imports a candidate's
text and never parses a candidate's bytes. Between orders it is asleep.
"""

from __future__ import annotations

import collections
import contextlib
import os
import platform
import shutil
import socket
import traceback
from pathlib import Path
from typing import Any

import torch

from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.judge_admission import Yardstick, admit
from pike_hpc.evaluate.judge_host import Ending, Host
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_truth import Secrets, Truth, WeightsBy
from pike_hpc.evaluate.judge_verdict import (
    Exam,
    Examiner,
    NeedSeed,
    Outcome,
    Verdict,
    conclude,
    set_exam,
)
from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.screen import printable
from pike_hpc.evaluate.statistics import StopRule
from pike_hpc.evaluate.wire import Channel
from pike_hpc.records import (
    Environment,
    EvalRequest,
    EvalResult,
    EvalStatus,
    Isolation,
    PikeError,
    Task,
    Variant,
    decode,
    encode,
)
from pike_hpc.sandbox import protect_memory
from pike_hpc.tasks import effective_source
from pike_hpc.tasks.load import LoadedTask, build

WARM_TASKS = 2
"""Tasks whose reference runner and float64 twin are kept."""

FRESH_EXAM_S = 0.5
"""An exam that took longer to prepare is kept for the next candidate of the task."""

SEARCH_BUDGET_S = 2.0
HALF_WIDTH = {"cpu": 0.02, "cuda": 0.01}
"""When an interval is narrow enough; a CPU shared with the system is noisier."""


class Unfit(Exception):
    """The task can't be judged on; the message says why."""


class Bench:
    """One task, ready to judge on: truths by way of weights, and the reference's runner."""

    def __init__(self, task: Task, host: Host, device: torch.device, secrets: Secrets) -> None:
        self.task, self._host, self._device, self._secrets = task, host, device, secrets
        self._loaded: LoadedTask = build(task)
        self._ready: dict[WeightsBy, tuple[Truth, Yardstick]] = {}
        self._exams: dict[WeightsBy, Exam] = {}
        self._runner: RunnerLink | None = None
        self._runner_has: WeightsBy | None = None

    def truth(self, by: WeightsBy) -> tuple[Truth, Yardstick]:
        """The truth under this way of drawing weights, admitted or not."""
        if by not in self._ready:
            truth = Truth(self._loaded, by, self._device, self._secrets)
            self._ready[by] = (truth, admit(truth, self.task.digest))
        return self._ready[by]

    def start(self) -> None:
        """Have the reference's runner start importing torch, if there is none yet."""
        if self._runner is None:
            self._runner = RunnerLink(self._host, "reference")

    def reference(self, by: WeightsBy) -> RunnerLink:
        """The reference's runner, holding the judging weights. Raises RunnerFailed."""
        truth, _ = self.truth(by)
        self.start()
        assert self._runner is not None
        runner = self._runner
        if self._runner_has is None:
            threads = torch.get_num_threads()
            source = effective_source(self.task)
            runner.attach(truth.frame, truth.frame.setup(self._device.type, threads, source, None))
            runner.do(Op.IMPORT)
        runner.allow(3600.0)
        if self._runner_has is not by:
            weights = truth.weights
            runner.put_weights(weights.tensors)
            seeded = by is WeightsBy.SEED
            runner.do(Op.LOAD, by_seed=seeded, seed=weights.constructor_seed)
            self._runner_has = by
        return runner

    def exam(self, by: WeightsBy, secrets: Secrets) -> Exam:
        """Secret inputs with their answers: fresh ones, or the first ones where they cost much.

        Reuse gives nothing away: a runner lives for one candidate, and timed inputs are always
        fresh. Raises RunnerFailed.
        """
        kept = self._exams.get(by)
        if kept is not None and kept.cost_s > FRESH_EXAM_S:
            return kept
        truth, yardstick = self.truth(by)
        self._exams[by] = set_exam(truth, yardstick, self.reference(by), secrets)
        return self._exams[by]

    def close(self) -> None:
        """End the reference's runner."""
        if self._runner is not None:
            self._runner.end()
            self._runner = None
            self._runner_has = None


class Judge:
    """Carries out orders one at a time."""

    def __init__(self, host: Host, device: torch.device, isolation: Isolation) -> None:
        self._host, self._device, self._isolation = host, device, isolation
        self._secrets = Secrets(os.urandom(32))
        self._benches: collections.OrderedDict[str, Bench] = collections.OrderedDict()
        self._environment = environment(device)

    def evaluate(self, request: EvalRequest) -> EvalResult:
        """The result for one candidate; only a broken lane raises."""
        outcome, tail = Outcome(), ""
        try:
            tail = self._evaluate(request, outcome)
        except RunnerFailed as failed:
            self._forget(request.task)
            outcome.status = EvalStatus.JUDGE_ERROR
            outcome.message = f"the reference's runner failed: {failed}"
        except Unfit as error:
            outcome.status, outcome.message = EvalStatus.JUDGE_ERROR, str(error)
        except (PikeError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            traceback.print_exc()
            self._forget(request.task)
            outcome.status = EvalStatus.JUDGE_ERROR
            outcome.message = f"the task could not be judged: {printable(str(error), 400)}"
        return self._record(request, outcome, tail)

    def admit(self, task: Task, small_only: bool) -> Admission:
        """What is to be said of a task before anyone is judged on it."""
        try:
            return self._bench(task).truth(WeightsBy.STATE)[1].admission
        except (PikeError, RuntimeError, TypeError, ValueError) as error:
            return Admission(
                task_digest=task.digest, admitted=False, reason=printable(str(error), 400)
            )

    def close(self) -> None:
        """End every runner."""
        for bench in self._benches.values():
            bench.close()

    def _evaluate(self, request: EvalRequest, outcome: Outcome) -> str:
        self._host.phase("start")
        link = RunnerLink(self._host, "candidate")
        try:
            bench = self._bench(request.task)
            bench.start()
            try:
                self._judge(request, bench, link, WeightsBy.STATE, outcome)
            except NeedSeed:
                outcome.tags.append("weights_by_seed")
                self._judge(request, bench, link, WeightsBy.SEED, outcome)
        finally:
            ending: Ending = link.end()
        return ending.tail

    def _judge(
        self,
        request: EvalRequest,
        bench: Bench,
        link: RunnerLink,
        by: WeightsBy,
        outcome: Outcome,
    ) -> None:
        truth, yardstick = bench.truth(by)
        if not yardstick.admission.admitted:
            reason = yardstick.admission.reason
            if by is WeightsBy.STATE:
                raise Unfit(f"the task is not admitted: {reason}")
            outcome.status = EvalStatus.WRONG_STRUCTURE
            outcome.message = (
                "the reference's weights have no place in it, and with weights from a seed "
                f"the task is not admitted: {reason}"
            )
            return
        # Labels of an evaluation's seeds are fresh random bytes: no seed is ever drawn twice.
        secrets = Secrets(os.urandom(32))
        reference = bench.reference(by)
        exam = bench.exam(by, secrets)
        examiner = Examiner(request, truth, exam, link, outcome)
        try:
            if by is WeightsBy.STATE:
                threads = torch.get_num_threads()
                source = effective_source(request.task)
                link.attach(
                    truth.frame,
                    truth.frame.setup(self._device.type, threads, source, request.candidate_source),
                )
                link.allow(request.timeout_s)
            self._examine(examiner, reference, secrets, by)
            found = outcome.timing
            assert found is not None
            outcome.status = EvalStatus.PASSED
            outcome.message = (
                f"{found.speedup:.2f}x the reference's speed "
                f"({found.ci95[0]:.2f} to {found.ci95[1]:.2f}), tier {outcome.tier}"
            )
        except Verdict as verdict:
            outcome.status, outcome.message = verdict.status, verdict.message
        except RunnerFailed as failed:
            if failed.runner != link.number:
                raise
            if failed.op is None:
                tail = link.end(1.0).tail.strip().splitlines()
                said = printable(tail[-1]) if tail else "it said nothing"
                raise Unfit(f"the sandboxed runner did not start: {said}") from None
            conclude(outcome, failed, link, examiner.calls, request.timeout_s)

    def _examine(
        self, examiner: Examiner, reference: RunnerLink, secrets: Secrets, by: WeightsBy
    ) -> None:
        self._host.phase("build")
        if by is WeightsBy.STATE:
            examiner.build()
        else:
            examiner.load_by_seed()
        self._host.phase("correctness")
        examiner.answer()
        self._host.phase("timing")
        rule = StopRule(half_width=HALF_WIDTH[self._device.type], budget_s=SEARCH_BUDGET_S)
        examiner.time(reference, rule, secrets)
        examiner.change_weights()

    def _bench(self, task: Task) -> Bench:
        if task.digest not in self._benches:
            self._host.phase("reference")
            while len(self._benches) >= WARM_TASKS:
                self._benches.popitem(last=False)[1].close()
            self._benches[task.digest] = Bench(task, self._host, self._device, self._secrets)
        self._benches.move_to_end(task.digest)
        return self._benches[task.digest]

    def _forget(self, task: Task) -> None:
        bench = self._benches.pop(task.digest, None)
        if bench is not None:
            bench.close()

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
            one_off=outcome.one_off,
            isolation=self._isolation,
            message=outcome.message,
            log_tail=clean(tail),
            environment=self._environment,
        )


def environment(device: torch.device) -> Environment:
    """Where verdicts are made."""
    driver = ""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        driver = f"CUDA {torch.version.cuda}"
    else:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
        name = next(names, platform.machine())
    return Environment(
        device=name,
        torch=torch.__version__,
        python=platform.python_version(),
        cpu_threads=torch.get_num_threads(),
        host=socket.gethostname(),
        driver=driver,
    )


def serve(host: Host) -> None:
    """Orders until the lane is gone."""
    judge: Judge | None = None
    while (order := host.next_order()) is not None:
        what: str = order["order"]
        if what == "open":
            torch.set_num_threads(order["threads"])
            device = torch.device(order["device"])
            judge = Judge(host, device, decode(Isolation, order["isolation"]))
            host.deliver(ready=True)
            continue
        assert judge is not None
        done: Any
        if what == "evaluate":
            done = judge.evaluate(decode(EvalRequest, order["request"]))
        else:
            done = judge.admit(decode(Task, order["task"]), order["small_only"])
        host.deliver(done=encode(done))


def main(fd: int, scratch: str) -> None:
    """Serve the lane at the other end of socket `fd`; sockets of runners go below `scratch`."""
    protect_memory()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with socket.socket(fileno=fd) as link:
        try:
            serve(Host(Channel(link), Path(scratch)))
        finally:
            # The lane may have been killed: whoever of its processes ends last cleans up.
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                Path(scratch).parent.rmdir()
