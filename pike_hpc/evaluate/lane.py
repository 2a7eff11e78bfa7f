"""A lane: one device, one judge, one candidate at a time. Host side, without torch.

The lane is the only one that starts and ends processes: the judge asks for runners, the lane
starts them under the sandbox with a warden each. Whatever a candidate does, `evaluate` returns a
result. A judge that dies or hangs is a JUDGE_ERROR, never counted against the candidate, and the
next evaluation gets a new one.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pike_hpc import sandbox
from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.bailiff import JudgeProcess
from pike_hpc.evaluate.builder import Builder
from pike_hpc.evaluate.built import NOTHING, Built
from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.screen import screen
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wire import Gone
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

MAX_SOCKET_PATH = 107
"""sun_path of unix(7) less its final NUL."""

JUDGE_PATIENCE_S = 600.0
"""How long the judge may be silent beyond a candidate's time: float64 answers of large models."""

_RUNNER = Path(__file__).with_name("runner")
START_RUNNER = """
import importlib.util, sys
folder, address = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "pike_runner", folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
package.main(address)
"""
"""By path and alone: nothing else of the project can be imported where a candidate runs."""

_CALM = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""OpenMP threads that wait sleep, in judge and runners alike. Spinning ones are faster alone, but
with one busy neighbour on two cores they made LeNet's reference 30 times as slow as itself."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class JudgeLost(Exception):
    """The judge died or fell silent; the message says how."""


class Lane:
    """Judges candidates on one device. Not for several threads at once."""

    def __init__(
        self,
        device: str,
        engine: sandbox.Engine,
        *,
        scratch: Path,
        python: str = sys.executable,
        threads: int | None = None,
        gpu: str | None = None,
        image: str | None = None,
        memory_mb: int | None = None,
        scratch_mb: int = 2048,
        processes: int = 512,
        builder: Builder | None = None,
    ) -> None:
        """Make the lane's folder; processes start with the first evaluation.

        Args:
            device: cpu or cuda.
            engine: what runners are kept in, as `sandbox.choose` gives it.
            scratch: a node-local folder; sockets and a runner's files go below it.
            python: the interpreter of judge and runners, with torch.
            threads: of each runner and of the judge; None for the cores we may use.
            gpu: UUID of the GPU for CUDA_VISIBLE_DEVICES; None shows all.
            image: container image, for engines that run one.
            memory_mb: of each process of a candidate; None for half of the machine's.
            scratch_mb: of a candidate's files.
            processes: of a candidate, threads included.
            builder: compiles ahead, the caller closes it; None leaves that to the run.

        Raises:
            UsageError: the path of `scratch` is too long for a socket.
        """
        self._device, self._engine, self._python = device, engine, python
        self._threads = threads or len(os.sched_getaffinity(0))
        self._image = image
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 << 20)
        self._memory_mb = half if memory_mb is None else memory_mb
        self._scratch_mb, self._processes = scratch_mb, processes
        self._builder, self._tools = builder, builder.tools if builder else sandbox.Toolchain()
        self._extra = {**_CALM, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}), **self._tools.env}
        self._facts = sandbox.look()
        scratch.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="lane-", dir=scratch)).resolve()
        self._folder.chmod(0o711)
        if len(os.fsencode(self._folder / "j00" / "r00000" / "s")) > MAX_SOCKET_PATH:
            self._folder.rmdir()
            raise UsageError(
                "the scratch folder's path is too long for a socket in it",
                where=str(scratch),
                valid=f"at most about {MAX_SOCKET_PATH - 27} characters",
                fix="set paths.tmp of the site to a short node-local folder such as /tmp",
            )
        self._isolation: Isolation | None = None
        self._judge: JudgeProcess | None = None
        self._judges = 0
        self._met: set[str] = set()
        """Tasks that the living judge met in a search, and candidates that it judged again."""
        self._wards: dict[int, Ward] = {}
        self._runners = 0

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
        if self._isolation is None:
            spec = self._spec("true", self._folder, self._folder)
            self._isolation = sandbox.measure(
                self._engine, self._facts, spec, python=self._python, folder=self._folder
            )
        return self._isolation

    def build_ahead(self, request: EvalRequest) -> None:
        """Have what the candidate compiles compiled while others are judged. From any thread."""
        if self._builder is not None and self._refuse(request) is None:
            self._builder.submit(request)

    def evaluate(
        self, request: EvalRequest, on_phase: Callable[[str], None] | None = None
    ) -> EvalResult:
        """Judge one candidate. `on_phase` hears start, build, correctness, timing, reference."""
        start = time.monotonic()
        result = self._refuse(request) or self._built_and_judged(request, on_phase)
        return replace(result, lane_s=round(time.monotonic() - start, 3))

    def admit(self, task: Task, *, small_only: bool = False) -> Admission:
        """Whether the task can be judged on, and how finely.

        Args:
            task: admitted in a judge that keeps it for candidates.
            small_only: leave out what would take minutes on this device, with the reason.

        Raises:
            JudgeLost: the judge died or fell silent; the lane goes on with a new one.
        """
        message = {"order": "admit", "task": encode(task), "small_only": small_only}
        return decode(Admission, self._order(message, JUDGE_PATIENCE_S, None))

    def close(self) -> None:
        """End every process and delete the lane's folder. Can be called again."""
        self._drop_judge()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        if request.retime and self._met & {request.task.digest, request.candidate.id}:
            self._drop_judge()  # its weights and reference are those of an earlier time
        self._met.add(request.candidate.id if request.retime else request.task.digest)
        message = {"order": "evaluate", "request": encode(request), "built": encode(built)}
        try:
            done = self._order(message, request.timeout_s + JUDGE_PATIENCE_S, on_phase)
        except JudgeLost as lost:
            return self._without_judge(request, EvalStatus.JUDGE_ERROR, str(lost))
        return decode(EvalResult, done)

    def _without_judge(self, request: EvalRequest, status: EvalStatus, message: str) -> EvalResult:
        return EvalResult(key=request.key, status=status, message=message, isolation=self.isolation)

    def _order(
        self,
        message: dict[str, Any],
        patience_s: float,
        on_phase: Callable[[str], None] | None,
    ) -> Any:
        """Have the judge do something and serve it meanwhile. Raises JudgeLost."""
        try:
            judge = self._judge or self._start_judge()
            judge.forget_words()
            judge.channel.send(**message)
            return self._serve(judge, patience_s, on_phase, "done")
        except (JudgeLost, Gone) as error:
            said = self._judge.last_words() if self._judge else ""
            self._drop_judge()
            if isinstance(error, JudgeLost):
                raise
            raise JudgeLost(f"the judge died: {said}") from None
        except BaseException:
            self._drop_judge()  # an interrupted exchange can't be continued
            raise

    def _start_judge(self) -> JudgeProcess:
        self._judges += 1
        self._folder.mkdir(mode=0o711, exist_ok=True)
        folder = self._folder / f"j{self._judges}"
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)
        self._judge = JudgeProcess(
            self._python,
            folder,
            sandbox.environment(folder, threads=self._threads, extra=self._extra),
        )
        self._judge.channel.send(
            order="open",
            device=self._device,
            threads=self._threads,
            isolation=encode(self.isolation),
        )
        self._serve(self._judge, JUDGE_PATIENCE_S, None, "ready")
        return self._judge

    def _drop_judge(self) -> None:
        self._met.clear()
        if self._judge is not None:
            self._judge.end()
            self._judge = None
        for ward in self._wards.values():
            ward.end()
        self._wards.clear()

    def _serve(
        self,
        judge: JudgeProcess,
        patience_s: float,
        on_phase: Callable[[str], None] | None,
        until: str,
    ) -> Any:
        """Answer the judge until it sends `until`. Raises JudgeLost, Gone."""
        deadline = time.monotonic() + patience_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise JudgeLost(f"the judge was silent for {patience_s:.0f} s")
            sources: list[Any] = [
                judge.channel,
                *(w for w in self._wards.values() if not w.has_ended),
            ]
            ready = select.select(sources, [], [], left)[0]
            for number, ward in self._wards.items():
                if ward in ready and ward.pump():
                    judge.channel.send(ended=number)
            if judge.channel not in ready:
                continue
            deadline = time.monotonic() + patience_s
            for message in judge.channel.receive():
                if until in message:
                    return message[until]
                if "phase" in message:
                    if on_phase is not None:
                        on_phase(message["phase"])
                else:
                    judge.channel.send(**self._answer(message))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What the judge asked for."""
        if message["ask"] == "spawn":
            return {"runner": self._spawn(Path(message["socket"]))}
        ward = self._wards.get(message["runner"])
        if message["ask"] == "cpu":
            return {"cpu_s": ward.cpu_s() if ward else 0.0}
        if message["ask"] == "stop":
            return {"held": ward.stop() if ward else False}
        if message["ask"] == "go":
            return {"held": ward.go() if ward else False}
        status, tail = ward.end(message["grace_s"]) if ward else (None, "")
        self._wards.pop(message["runner"], None)
        return {"status": status, "tail": clean(tail)}

    def _spawn(self, address: Path) -> int:
        self._runners += 1
        place = self._folder / f"w{self._runners}"
        place.mkdir()
        sandbox.give_scratch(place, self._facts)
        spec = self._spec(str(address), address.parent, place)
        argv = sandbox.command(self._engine, spec, self._facts)
        program = shutil.which(argv[0], path=_PATH) or shutil.which(argv[0]) or argv[0]
        self._wards[self._runners] = Ward(
            [program, *argv[1:]],
            env={"PATH": _PATH},
            cwd=self._folder,
            remove=[place, address.parent],
        )
        return self._runners

    def _spec(self, address: str, sockets: Path, place: Path) -> sandbox.SandboxSpec:
        spec = sandbox.SandboxSpec(
            argv=(self._python, "-I", "-B", "-u", "-c", START_RUNNER, str(_RUNNER), address),
            read_only=(*sandbox.python_prefixes(), *self._tools.read_only, _RUNNER, sockets),
            env={},
            scratch_mb=self._scratch_mb,
            memory_mb=self._memory_mb,
            processes=self._processes,
            gpu=self._device == "cuda",
            image=self._image,
            scratch=place,
        )
        inside = sandbox.home(self._engine, spec) or place
        env = sandbox.environment(inside, threads=self._threads, extra=self._extra)
        return replace(spec, env=env)
