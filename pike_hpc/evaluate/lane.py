"""A lane: candidates judged one at a time, on a device that it may share. Host side, no torch.

Whatever a candidate does, `evaluate` returns a result. A judge that dies or hangs is a
JUDGE_ERROR, never counted against the candidate, and the next evaluation gets a new one. Lanes of
one GPU share a gate: who times is alone on it while the others are frozen. What fails for want of
memory beside others, or would not stay frozen, is tried again, at last with nobody beside it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pike_hpc import sandbox
from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.builder import Builder
from pike_hpc.evaluate.built import NOTHING, Built
from pike_hpc.evaluate.cell import Cell
from pike_hpc.evaluate.crew import JUDGE_PATIENCE_S, MAY_PASS, Crew, JudgeLost, Spoiled
from pike_hpc.evaluate.gate import Departed, Gate, Stay
from pike_hpc.evaluate.screen import screen
from pike_hpc.records import (
    EvalRequest,
    EvalResult,
    EvalStatus,
    Isolation,
    Task,
    UsageError,
    decode,
    encode,
)

_log = logging.getLogger(__name__)

MAX_SOCKET_PATH = 107
"""sun_path of unix(7) less its final NUL."""

TRIES_BESIDE = 2
"""Of an evaluation that something of a moment spoils. Alone it would keep every other lane waiting,
and have them let go of all that they keep warm."""

_CALM = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""For judge and runners alike. OpenMP threads that wait sleep: spinning ones are faster alone, but
with one busy neighbour on two cores they made LeNet's reference 30 times as slow as itself. Memory
that was freed stays with the process (mallopt(3)): by glibc's moving thresholds two processes of
one program may differ in which calls fault pages in, and an unchanged relu of 4 MB was 0.5 to 0.95
times as fast as itself."""


class Lane:
    """Judges candidates on one device. Not for several threads at once."""

    lost_judge = False
    """Whether the last evaluation ended with the judge's death."""
    task_refused = False
    """Whether it came to no verdict because its task is not admitted."""

    def __init__(
        self,
        device: str,
        engine: sandbox.Engine,
        *,
        scratch: Path,
        python: str = sys.executable,
        threads: int | None = None,
        gpu: str | None = None,
        gate: Gate[Crew] | None = None,
        spares: bool = False,
        image: str | None = None,
        memory_mb: int | None = None,
        scratch_mb: int = 2048,
        processes: int = 512,
        builder: Builder | None = None,
        like: Lane | None = None,
    ) -> None:
        """Make the lane's folder; processes start with the first evaluation.

        Args:
            device: cpu or cuda.
            engine: what runners are kept in, as `sandbox.choose` gives it.
            scratch: a node-local folder; sockets and a runner's files go below it.
            python: the interpreter of judge and runners, with torch, where no image has one.
            threads: of each runner and of the judge; None for the cores we may use.
            gpu: UUID of the GPU that there is for judge and runners; None for all.
            gate: of all lanes on the device; None where this is the only one.
            spares: start the next candidate's runner while this one is examined.
            image: container image, for engines that run one.
            memory_mb: of each process of a candidate; None for half of the machine's.
            scratch_mb: of a candidate's files.
            processes: of a candidate, threads included.
            builder: compiles ahead, the caller closes it; None leaves that to the run.
            like: a lane of the same engine and image, whose isolation holds here, too.

        Raises:
            UsageError: the path of `scratch` is too long for a socket.
        """
        self._spares, self._builder, self._like = spares, builder, like
        tools = builder.tools if builder else sandbox.Toolchain()
        self._cell = Cell(
            engine=engine,
            folder=_new_folder(scratch),
            device=device,
            gpu=gpu,
            threads=threads or len(os.sched_getaffinity(0)),
            python=python,
            image=image,
            memory_mb=_half_of_memory_mb() if memory_mb is None else memory_mb,
            scratch_mb=scratch_mb,
            processes=processes,
            read_only=tuple(tools.read_only),
            libraries=builder.folder if builder else None,
            extra={**_CALM, **tools.env},
        )
        self._isolation: Isolation | None = None
        self._once = threading.Lock()
        self._gate: Gate[Crew] = gate or Gate()
        self._crew = Crew(self._cell, self._gate, self._opening)

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def isolation(self) -> Isolation:
        """What separates a candidate from everything else here, measured once by attacks."""
        if self._like is not None:
            return self._like.isolation
        with self._once:
            if self._isolation is None:
                self._isolation = self._cell.measure()
            return self._isolation

    def build_ahead(self, request: EvalRequest) -> None:
        """Have what the candidate compiles compiled while others are judged. From any thread."""
        if self._builder is not None and self._refuse(request) is None:
            self._builder.submit(request)

    def is_built(self, request: EvalRequest) -> bool:
        """Whether nothing of the candidate is being compiled. From any thread."""
        return self._builder is None or self._builder.is_idle(request)

    def evaluate(
        self, request: EvalRequest, on_phase: Callable[[str], None] | None = None
    ) -> EvalResult:
        """Judge one candidate.

        `on_phase` hears start, reference, build, correctness, gate (it waits to be timed), timing;
        twice where it is judged again with all connections to the GPU.
        """
        self.lost_judge = self.task_refused = False
        refused = self._refuse(request)
        if refused is not None:
            return refused
        try:
            return self._built_and_judged(request, on_phase)
        except Departed:
            return self._lost(request, "the lane was closed")

    def admit(self, task: Task, *, small_only: bool = False) -> Admission:
        """Whether the task can be judged on, and how finely.

        Args:
            task: admitted in a judge that keeps it for candidates.
            small_only: leave out what would take minutes on this device, with the reason.

        Raises:
            JudgeLost: the judge died or fell silent; the lane goes on with a new one.
        """
        message = {"order": "admit", "task": encode(task), "small_only": small_only}
        return decode(Admission, self._crew.order(message))

    def close(self) -> None:
        """End every process and delete the lane's folder. Can be called again."""
        self._crew.close()

    def _opening(self) -> dict[str, Any]:
        """What a new judge is told."""
        return {
            "device": self._cell.device,
            "threads": self._cell.threads,
            "isolation": encode(self.isolation),
            "spares": self._spares,
        }

    def _refuse(self, request: EvalRequest) -> EvalResult | None:
        """The result for what needs no process."""
        reached = self.isolation.level
        if not sandbox.meets(reached, request.min_isolation):
            return self._without_judge(
                request,
                EvalStatus.JUDGE_ERROR,
                f"isolation {reached} (engine {self.isolation.engine}) is below the "
                f"{request.min_isolation} that was asked for; `pike-hpc doctor` says why",
            )
        refusal = screen(request.candidate_source)
        if refusal is not None:
            return self._without_judge(request, refusal.status, refusal.message)
        return None

    def _built_and_judged(
        self, request: EvalRequest, on_phase: Callable[[str], None] | None
    ) -> EvalResult:
        built = self._builder.take(request) if self._builder else NOTHING
        if built.failed:
            message = "could not be imported: a compiler refused its sources; see the log"
            result = self._without_judge(request, EvalStatus.BUILD_ERROR, message)
            result = replace(result, log_tail=built.tail)
        else:
            result = self._judged(request, built, on_phase)
        once = replace(result.one_off, build_s=result.one_off.build_s + built.seconds)
        return replace(result, one_off=once)

    def _judged(
        self, request: EvalRequest, built: Built, on_phase: Callable[[str], None] | None
    ) -> EvalResult:
        """Beside others; at last with nobody beside it where being beside others spoiled that."""
        task = request.task.digest
        stays: list[Stay] = []
        spoiled = None
        for _ in range(TRIES_BESIDE if self._gate.home(task) is None else 0):
            with self._gate.among(self._crew) as stay:
                if spoiled is Spoiled.SHORT and not request.retime:  # that has a new judge now
                    # How much room it takes was found out beside others that took some meanwhile.
                    self._crew.give_way()
                result, spoiled = self._attempt(self._crew, request, built, on_phase)
            stays.append(stay)
            if spoiled is None and not self.lost_judge:
                self._gate.fitted(task)
            if spoiled is None or not self._gate.shared:
                return _charged(result, stays)
            _log.warning("judged again, %s: %s", spoiled.value, result.message)
            if spoiled not in MAY_PASS:
                break
        home = self._gate.home(task) or self._crew
        with self._gate.whole(home) as stay:
            if stays:
                home.give_way()  # what it found out about room beside others does not hold alone
            result, again = self._attempt(home, request, built, on_phase)
        stays.append(stay)
        wants_room = spoiled in (Spoiled.SHORT, Spoiled.HUNGRY)
        if wants_room and again is None and not self.lost_judge:
            # The task wants the room, not a candidate that takes whatever there is.
            self._gate.settle(task, home)
        return _charged(result, stays)

    def _attempt(
        self,
        crew: Crew,
        request: EvalRequest,
        built: Built,
        on_phase: Callable[[str], None] | None,
    ) -> tuple[EvalResult, Spoiled | None]:
        task, candidate = request.task.digest, request.candidate.id
        if request.retime:
            crew.meet_afresh(candidate, {task, candidate})
        else:
            crew.meet(task)
            if not crew.meet(candidate):
                # What it left in its cache may tell of this judge's secrets, some of which stay.
                built = replace(built, cache=None)
        message = {"order": "evaluate", "request": encode(request), "built": encode(built)}
        message["keep"] = self._builder is not None
        patience_s = request.timeout_s + JUDGE_PATIENCE_S
        try:
            result = decode(EvalResult, crew.order(message, patience_s, on_phase))
        except JudgeLost as lost:
            return self._lost(request, str(lost)), None
        spoiled, self.task_refused = crew.spoiled, crew.refused
        if crew.left is not None and self._builder is not None:
            self._builder.keep(request, crew.left)
        if spoiled is None and result.status is EvalStatus.OUT_OF_MEMORY:
            spoiled = Spoiled.HUNGRY
        return result, spoiled

    def _lost(self, request: EvalRequest, why: str) -> EvalResult:
        self.lost_judge = True
        return self._without_judge(request, EvalStatus.JUDGE_ERROR, why)

    def _without_judge(self, request: EvalRequest, status: EvalStatus, message: str) -> EvalResult:
        return EvalResult(key=request.key, status=status, message=message, isolation=self.isolation)


def _charged(result: EvalResult, stays: Sequence[Stay]) -> EvalResult:
    """With what all attempts have had of the GPU, to milliseconds."""
    return replace(
        result,
        lane_s=round(sum(stay.gpu_s for stay in stays), 3),
        gpu_exclusive_s=round(sum(stay.alone_s for stay in stays), 3),
    )


def _half_of_memory_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 << 20)


def _new_folder(scratch: Path) -> Path:
    """A lane's own folder. Raises UsageError where its sockets' paths would be too long."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="lane-", dir=scratch)).resolve()
    folder.chmod(0o711)
    if len(os.fsencode(folder / "j00" / "r00000" / "s")) > MAX_SOCKET_PATH:
        folder.rmdir()
        raise UsageError(
            "the scratch folder's path is too long for a socket in it",
            where=str(scratch),
            valid=f"at most about {MAX_SOCKET_PATH - 27} characters",
            fix="set paths.tmp of the site to a short node-local folder such as /tmp",
        )
    return folder
