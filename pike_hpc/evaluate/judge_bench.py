"""One task, ready to judge on: truths by way of weights, the reference's runner, exams.

Order matters where memory is short: everything that the judge computes itself comes first, and a
large model has left the device before the reference takes its place there.
"""

from __future__ import annotations

import math
import os
import sys
import time

import torch

from pike_hpc.evaluate.judge_admission import Yardstick, admit
from pike_hpc.evaluate.judge_cores import spin_cpus
from pike_hpc.evaluate.judge_exam import SEEDS, Exam, answer, call, set_paper
from pike_hpc.evaluate.judge_host import Ending
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_memory import Place
from pike_hpc.evaluate.judge_physics import Physics
from pike_hpc.evaluate.judge_room import PLENTY_BYTES, free_bytes, give_back
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_shared import Shared, answers_in, places_for
from pike_hpc.evaluate.judge_size import too_large_for_cpu
from pike_hpc.evaluate.judge_spares import Spares
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.evaluate.physics import Work
from pike_hpc.evaluate.runner import Op, Source
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import Task
from pike_hpc.tasks import effective_source
from pike_hpc.tasks.load import LoadedTask, build

FRESH_EXAM_S = 0.5
"""An exam that took longer to prepare is kept for the next candidate of the task."""

DRAWS, DRAWS_S = 3, 60.0
"""Weights that a task is tried with until it is admitted; after so long no others are. Of level5/11
two draws of three were refused: its layers count for less than what is granted (docs/tasks.md)."""

REFERENCE_TIME_S = 3600.0
"""The reference is trusted code; this only ends what would never end."""

SHED_S = 10.0
"""For giving memory back; a driver that takes longer has other troubles."""

OWN_BYTES = 1 << 30
"""Of a GPU a process takes so much for itself at most: its context, kernels and libraries."""


class Unfit(Exception):
    """The task can't be judged on; the message says why."""


class NotAdmitted(Unfit):
    """It can't tell right from wrong: that says nothing of the machine."""


class Shortage(Unfit):
    """There is no room for reference and candidate, at least while others are kept warm."""


class Crowded(Shortage):
    """A runner found no memory to start in: others have it, whatever the task itself takes."""


class Bench:
    """What is kept of one task from candidate to candidate."""

    def __init__(
        self, task: Task, runners: Spares, device: torch.device, place: Place, secrets: Secrets
    ) -> None:
        """Run the task's source. Raises TaskRefused."""
        self.task, self._runners, self._device, self._secrets = task, runners, device, secrets
        self._loaded: LoadedTask = build(task)
        self._ready: dict[WeightsBy, tuple[Truth, Yardstick]] = {}
        self._exams: dict[WeightsBy, Exam] = {}
        self._runner: RunnerLink | None = None
        self._failed: Ending | None = None
        """How the last reference's runner ended, where it failed."""
        self._runner_has: WeightsBy | None = None
        self._lean = SEEDS
        """Calls until the reference holds all memory that calls take. It keeps some answers: those
        it lacks when it was loaded, and has still when it gave memory back."""
        self._footprint = 0
        self._place = place
        self._work: dict[WeightsBy, Work | None] = {}

    def too_large(self) -> str:
        """Why the task is left out where only small ones are tried here; empty otherwise."""
        return too_large_for_cpu(self._loaded) if self._device.type == "cpu" else ""

    def truth(self, by: WeightsBy) -> tuple[Truth, Yardstick]:
        """The truth under this way of drawing weights, admitted or not."""
        if by not in self._ready:
            for truth, _ in self._ready.values():
                truth.release()
            self._ready[by] = self._draw(by)
        return self._ready[by]

    def work(self, by: WeightsBy, physics: Physics) -> Work | None:
        """What a call must move and compute; None where nothing is made of it."""
        if by not in self._work:
            self._work[by] = physics.work(self.truth(by)[0], self._loaded)
        return self._work[by]

    def start(self) -> None:
        """Have the reference's runner start, if there is none.

        One that was kept may have been killed meanwhile: for the machine's memory, or since it
        would not rest while another lane timed.
        """
        if self._runner is not None and self._runner.has_ended:
            sys.stderr.write(f"the reference of {self.task.key} had ended; it is started again\n")
            self._end_reference()
        if self._runner is None:
            self._runner = self._runners.take(RunnerRole.REFERENCE)

    def shared(self, by: WeightsBy) -> Shared:
        """What every runner of the task starts from."""
        truth, _ = self.truth(by)
        answers = answers_in(truth.frame, self._place)
        return Shared(
            frame=truth.frame,
            device=self._device,
            place=self._place,
            answers=answers,
            construct=truth.construct.type,
            sealed=self._place is Place.DEVICE,
            places=places_for(truth.frame, answers=answers, resets=truth.resets),
            resets=truth.resets,
            threads=torch.get_num_threads(),
            spin_cpus=spin_cpus(self._device.type)[1],
            task=effective_source(self.task),
            weights=truth.weights.buffer,
            other_weights=truth.probe.weights.buffer,
        )

    def exam(self, by: WeightsBy, secrets: Secrets) -> Exam:
        """Secret inputs with their answers: fresh ones, or the first ones where they cost much.

        Reuse gives nothing away: a runner lives for one judging of one candidate, what one leaves
        in its compile cache is never given back to it here (`Lane`), and timed inputs are always
        fresh.

        Raises:
            RunnerFailed: of the reference.
            Shortage: it has not enough memory.
        """
        known = self._exams.get(by)
        if known is not None and known.cost_s > FRESH_EXAM_S:
            return known
        truth, yardstick = self.truth(by)
        paper = set_paper(truth, yardstick, secrets)
        shared = self.shared(by)
        truth.forget_inputs()
        if truth.large:
            truth.release()
        fresh = self._runner_has is not by
        before = self._free_bytes(math.inf if fresh else self._wanted_bytes)
        kept = self._footprint if self._runner_has is not None else 0
        try:
            self._exams[by] = answer(paper, truth, self._reference(by, shared))
        except RunnerFailed as failed:
            self._raise_shortage(failed, before)
            raise
        self._lean = 0
        if fresh and by is WeightsBy.STATE:  # a candidate may hold more by the other weights' exam
            # Loaded anew it mostly takes what it had: that alone is not what it takes in all.
            self._footprint = max(kept, before - self._free_bytes())
        return self._exams[by]

    def reference(self, by: WeightsBy, secrets: Secrets) -> RunnerLink:
        """The reference's runner, holding the judging weights and all memory that it calls in.

        Raises RunnerFailed, Shortage.
        """
        if self._runner_has is not by:
            self.exam(by, secrets)
        fresh = self._runner_has is not by
        before = self._free_bytes(math.inf if fresh else self._wanted_bytes)
        try:
            runner = self._reference(by, self.shared(by))
            for packed in self._exams[by].inputs[: self._lean]:
                call(runner, self.truth(by)[0], packed)
        except RunnerFailed as failed:
            self._raise_shortage(failed, before)
            raise
        self._lean = 0
        return runner

    def demand_room(self) -> None:
        """Raises Shortage where a program as large as the reference would not fit beside it."""
        free = self._free_bytes(self._wanted_bytes)
        if self._device.type == "cuda" and free < self._footprint:
            raise Shortage(
                f"reference and candidate do not fit onto the GPU together: the reference took "
                f"{self._footprint / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are left"
            )

    def overdrawn(self, candidate: RunnerLink) -> str:
        """What a candidate takes beyond the room that was demanded for it; empty for no more.

        Also where its share of room was left all the same: then memory was short elsewhere. Its
        runner is ended: what comes free is what it held, whatever the driver calls it.
        """
        if self._device.type != "cuda" or not candidate.attached:
            return ""
        share = self._footprint + OWN_BYTES
        # A reference that ran short was ended, and what it held is free by now.
        free = max(self._free_bytes() - (self._footprint if self._runner is None else 0), 0)
        if free >= share:
            return ""
        before = self._free_bytes()
        candidate.end()
        held = self._free_bytes() - before
        if held <= share:
            return ""
        return (
            f"it held {held / 2**30:.1f} GiB of the GPU, where the reference takes "
            f"{self._footprint / 2**30:.1f} GiB and {free / 2**30:.1f} GiB were left"
        )

    def close(self) -> Ending | None:
        """End the reference's runner and let go of all memory; how the last runner ended."""
        ending = self._end_reference() or self._failed
        self._exams.clear()
        for truth, _ in self._ready.values():
            truth.close()
        self._ready.clear()
        return ending

    def ended(self, error: BaseException) -> Ending | None:
        """How the reference's runner ended, where this is its failure. It is ended now."""
        if not isinstance(error, RunnerFailed):
            return None
        if self._runner is not None and self._runner.number == error.runner:
            self._failed = self._end_reference()
        return self._failed

    def rest(self) -> None:
        """Let go of the device's memory; that the task was admitted, and how, stays."""
        self._end_reference()
        self._exams.clear()
        for truth, _ in self._ready.values():
            truth.release()

    def shed(self) -> None:
        """Give back the GPU's memory that holds nothing now: other lanes have use for it.

        Raises RunnerFailed: of the reference.
        """
        if self._runner is None or self._runner.has_ended:
            return
        if self._device.type == "cuda" and not self._lean:
            self._runner.allow(SHED_S)
            self._runner.do(Op.SHED)
            self._lean = 1

    def release(self) -> None:
        """Let go of models on the device; what was found out stays."""
        for truth, _ in self._ready.values():
            if truth.large:
                truth.release()

    def _draw(self, by: WeightsBy) -> tuple[Truth, Yardstick]:
        """The first weights that the task is admitted with, else the last that were tried."""
        end_s = time.monotonic() + DRAWS_S
        truth, yardstick = self._drawn(by, self._secrets)
        for _ in range(DRAWS - 1):
            if yardstick.admission.admitted or not self._draws_weights(truth):
                break
            if time.monotonic() > end_s:
                break
            truth.close()
            try:
                truth, yardstick = self._drawn(by, Secrets(os.urandom(32)))
            except Exception:  # a forward that fails with these weights: it was refused before
                return self._drawn(by, self._secrets)
        return truth, yardstick

    def _drawn(self, by: WeightsBy, secrets: Secrets) -> tuple[Truth, Yardstick]:
        """Weights by these secrets, and what they are good for."""
        truth = Truth(self._loaded, by, self._device, secrets)
        try:
            yardstick = admit(truth, self.task.digest)
        except BaseException:
            truth.close()
            raise
        truth.forget_inputs()
        return truth, yardstick

    def _draws_weights(self, truth: Truth) -> bool:
        """Whether other secrets give other weights."""
        has_checkpoint = "get_state_dict" in self._loaded.namespace
        return bool(truth.parameters) and not truth.legacy and not has_checkpoint

    def _end_reference(self) -> Ending | None:
        ending = None if self._runner is None else self._runner.end()
        self._runner, self._runner_has, self._lean = None, None, SEEDS
        return ending

    def _raise_shortage(self, failed: RunnerFailed, before_bytes: int) -> None:
        """Raises Shortage where the reference failed for want of memory. Ends it in any case.

        `before_bytes`: what was free before it failed.
        """
        self._failed = self._end_reference()
        if not failed.lacked_memory(self._failed):
            return
        if failed.op is None:
            raise Crowded("the reference's runner found no memory to start in") from None
        raise Shortage(
            f"the reference needs more memory than the {before_bytes / 2**30:.1f} GiB that are "
            f"free on this {self._device.type}"
        ) from None

    def _reference(self, by: WeightsBy, shared: Shared) -> RunnerLink:
        self.start()
        assert self._runner is not None
        runner = self._runner
        if self._runner_has is None:
            runner.attach(shared, None)
            runner.do(Op.IMPORT)
        runner.allow(REFERENCE_TIME_S)
        if self._runner_has is not by:
            truth, _ = self.truth(by)
            source = Source.SEED if by is WeightsBy.SEED else Source.STATE
            runner.do(Op.LOAD, source=source, seed=truth.weights.constructor_seed)
            self._runner_has, self._lean = by, SEEDS
        return runner

    @property
    def _wanted_bytes(self) -> int:
        """With so much of a GPU free nobody lacks what torch keeps."""
        return max(self._footprint, PLENTY_BYTES)

    def _free_bytes(self, enough: float = math.inf) -> int:
        """Memory that may still be taken; what torch keeps goes back unless `enough` is free."""
        give_back(self._device, enough=enough)
        return free_bytes(self._device)
