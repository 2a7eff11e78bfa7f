"""Open the lanes that judge here: engine chosen by trial, scratch folder, torch present.

A worker opens several lanes on each GPU, under its lock and with one gate; on a CPU one lane.
GPUs divide the CPU cores among themselves, lanes the memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pike_hpc import sandbox
from pike_hpc.cli.judging_torch import require_torch
from pike_hpc.cli.lane_count import lanes_each
from pike_hpc.config import env
from pike_hpc.evaluate.builder import Builder
from pike_hpc.evaluate.crew import Crew, JudgeLost
from pike_hpc.evaluate.device import Device, compute_capability
from pike_hpc.evaluate.gate import Gate
from pike_hpc.evaluate.gpu_lock import take_free
from pike_hpc.evaluate.judge_cores import for_builds
from pike_hpc.evaluate.lane import Lane
from pike_hpc.machine import (
    divide_cpus,
    physical_cores,
    pid_namespace,
    remove_tree,
    runs,
    start_ticks,
)
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Isolation, UsageError
from pike_hpc.worker import JudgeUnwell

_log = logging.getLogger(__name__)

_WAIT_S = 15.0
"""How long a worker waits for a GPU: another may be handing back its work."""

SPARE_CORES = 4
"""With fewer, a runner that starts ahead of its candidate takes more than it gives."""

_OWNER = re.compile(r"pike-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-")
"""PID namespace, process and its start time in the name of a scratch folder, in hexadecimal: a
socket's path below it may have 107 bytes."""


@contextmanager
def open_lane(
    device: Device, engine: str, tmp: Path | None = None, image: str | None = None
) -> Iterator[Lane]:
    """A lane on `device`, closed and its scratch removed at the end.

    Args:
        device: as `detect` found it.
        engine: a value of container.engine.
        tmp: node-local folder for sockets and scratch; the system's where None.
        image: container.image, for an engine that runs one.

    Of several GPUs the first on which no other process judges is taken.

    Raises:
        UsageError: no torch to judge with, or the engine does not work here.
        TryAgainLater: other processes judge on every GPU.
    """
    require_torch(engine, image)
    with _scratch(tmp) as scratch, _gpus(device, scratch.parent, wanted=1) as gpus:
        chosen = _choose(engine, image)
        with (
            _nothing_left(chosen),
            _builder(chosen, scratch, gpus, _shares(gpus), image, _tools(image)) as builder,
            Lane(
                device.torch_device,
                chosen,
                scratch=scratch,
                gpu=gpus[0],
                image=image,
                builder=builder,
            ) as lane,
        ):
            yield lane


@contextmanager
def open_judges(
    device: Device,
    engine: str,
    tmp: Path | None = None,
    image: str | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Iterator[tuple[LaneJudge, ...]]:
    """Judges on each GPU of `device` that no other process judges on; on a CPU one.

    Arguments as of `open_lane`; `on_phase` hears what each thing that may hang is. Waits a little
    for the first GPU: a worker before us may be handing its work back.

    Raises:
        UsageError: no torch to judge with, or the engine does not work here.
        TryAgainLater: other processes judge on every GPU.
    """
    require_torch(engine, image)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_scratch(tmp))
        on_phase("wait for its GPU's lock")
        held = _gpus(device, scratch.parent, wanted=len(device.gpus), wait_s=_WAIT_S)
        gpus = stack.enter_context(held)
        on_phase(f"trial of its sandbox (engine {engine})")
        chosen = _choose(engine, image)
        stack.enter_context(_nothing_left(chosen))
        shares = _shares(gpus)
        on_phase("look at its processors and compilers")
        half_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 << 20)
        tools = _tools(image)
        on_phase("look for torch's bytecode")
        tools = sandbox.with_bytecode(tools, scratch / "bytecode", chosen, sandbox.look())
        builder = stack.enter_context(_builder(chosen, scratch, gpus, shares, image, tools))
        uuids = [gpu for gpu in gpus if gpu is not None]
        each = lanes_each(min(map(len, shares)), uuids)
        gates: list[Gate[Crew]] = [Gate() for _ in gpus]
        judges, first = [], None
        # GPU by GPU within each round: the first requests go to as many GPUs as there are.
        for gpu, share, gate in list(zip(gpus, shares, gates, strict=True)) * each:
            lane = Lane(
                device.torch_device,
                chosen,
                scratch=scratch,
                threads=max(1, len(share) // each),
                gpu=gpu,
                gate=gate,
                spares=len(share) >= SPARE_CORES,
                image=image,
                memory_mb=half_mb // (len(gpus) * each),
                builder=builder,
                like=first,
            )
            first = first or lane
            stack.enter_context(lane)
            judges.append(LaneJudge(lane, device, share if len(gpus) > 1 else None))
            where = f"GPU {gpu}" if gpu else "CPU"
            _log.info("lane %d: %s, cores %s", len(judges), where, sorted(share))
        yield tuple(judges)


def _shares(gpus: Collection[str | None]) -> tuple[frozenset[int], ...]:
    """The CPUs of each GPU's lanes."""
    cpus = os.sched_getaffinity(0)
    return divide_cpus(cpus, len(gpus), physical_cores(cpus))


def _tools(image: str | None) -> sandbox.Toolchain:
    """The compilers that this process's environment names.

    No bytecode: for one candidate, making it takes longer than it saves.
    """
    return sandbox.toolchain(env.environ(), image=image)


def _builder(
    engine: sandbox.Engine,
    scratch: Path,
    gpus: Sequence[str | None],
    shares: Sequence[Collection[int]],
    image: str | None,
    tools: sandbox.Toolchain,
) -> Builder:
    """One for all lanes of a process: their GPUs are of one kind.

    Builds go on while a GPU's lanes time, so they leave alone the cores that are timed on.
    """
    cpus: frozenset[int] = frozenset()
    arch = None
    if gpus[0] is not None:
        arch = compute_capability(gpus[0])
        cpus = for_builds(shares, physical_cores(os.sched_getaffinity(0)))
    return Builder(engine, scratch=scratch, tools=tools, arch=arch, image=image, cpus=cpus)


def measure_isolation(engine: str, tmp: Path | None = None, image: str | None = None) -> Isolation:
    """What an engine stops here, by attacks. Raises UsageError, PikeError."""
    chosen = _choose(engine, image)
    with (
        _nothing_left(chosen),
        _scratch(tmp) as scratch,
        Lane("cpu", chosen, scratch=scratch, image=image) as lane,
    ):
        return lane.isolation


class LaneJudge:
    """A lane as the worker wants it: a judge of one kind of device."""

    def __init__(self, lane: Lane, device: Device, cpus: Collection[int] | None = None) -> None:
        """`cpus`: the lane's share of them where it isn't alone."""
        self._lane = lane
        self._cpus = cpus
        self.device_kind = device.kind

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The verdict. Everything that the lane starts keeps to its CPUs, and so does this thread.

        Linux binds threads one by one, and a new process to where the thread is that starts it.

        Raises:
            JudgeLost: the lane's judge died; the next one may too, so this lane should rest.
            JudgeUnwell: nothing could be held against the reference here, as on a full disk or a
                GPU that somebody else fills: what comes next may fail likewise, and at once. Not
                so where the task is not admitted: that is its verdict, wherever it is asked for.
        """
        if self._cpus is not None:
            os.sched_setaffinity(0, self._cpus)
        result = self._lane.evaluate(request, on_phase)
        if self._lane.lost_judge:
            raise JudgeLost(result.message)
        undecided = result.status is EvalStatus.JUDGE_ERROR and result.correctness is None
        if undecided and not self._lane.task_refused:
            raise JudgeUnwell(result)
        return result

    def prepare(self, request: EvalRequest) -> None:
        """Have what a candidate compiles compiled before its turn. From any thread."""
        self._lane.build_ahead(request)

    def is_ready(self, request: EvalRequest) -> bool:
        """Whether nothing of it is being compiled. From any thread."""
        return self._lane.is_built(request)

    def close(self) -> None:
        """Kill what runs."""
        self._lane.close()


@contextmanager
def _gpus(
    device: Device, folder: Path, *, wanted: int, wait_s: float = 0.0
) -> Iterator[tuple[str | None, ...]]:
    """UUIDs of at most `wanted` GPUs, locked meanwhile; (None,) on a CPU."""
    if device.torch_device != "cuda":
        yield (None,)
        return
    locks, busy = take_free(folder, device.gpus, wanted=wanted, wait_s=wait_s)
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        for other in busy:
            _log.warning("left out: %s", other)
        yield tuple(lock.uuid for lock in locks)


@contextmanager
def _scratch(tmp: Path | None) -> Iterator[Path]:
    if tmp is not None and not tmp.is_dir():
        raise UsageError(
            f"no folder {tmp} for scratch",
            where="paths.tmp of the site",
            valid="a node-local folder that exists, such as /tmp",
        )
    parent = tmp or Path(tempfile.gettempdir())
    sweep(parent)
    prefix = f"pike-{owner_name(os.getpid())}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        folder.chmod(0o711)  # a candidate of another uid passes through to its own folder
        yield folder
    finally:
        remove_tree(folder)


def sweep(parent: Path) -> None:
    """Delete the scratch of our own processes that were killed before they could.

    Those of another PID namespace are left alone: nobody here can tell whether they live.
    """
    for folder in parent.glob("pike-*-*-*-*"):
        owner = _OWNER.match(folder.name)
        if owner is None or owner[1] != _namespace():
            continue
        with contextlib.suppress(OSError):
            mine = folder.stat().st_uid == os.geteuid() and not folder.is_symlink()
            if mine and runs(int(owner[2], 16), int(owner[3], 16)) is False:
                remove_tree(folder)


def owner_name(pid: int) -> str:
    """How a scratch folder names the process that it belongs to."""
    return f"{_namespace()}-{pid:x}-{start_ticks(pid) or 0:x}"


def _namespace() -> str:
    digits = "".join(filter(str.isdigit, pid_namespace()))
    return f"{int(digits or 0):x}"


@contextmanager
def _nothing_left(engine: sandbox.Engine) -> Iterator[None]:
    """Afterwards its client forgets the containers that were killed."""
    try:
        yield
    finally:
        sandbox.forget_ended(engine, sandbox.look())


def _choose(engine: str, image: str | None) -> sandbox.Engine:
    facts = sandbox.look()
    python, shown = sandbox.interpreter(engine, sys.executable)
    spec = sandbox.SandboxSpec(argv=("true",), read_only=shown, env={}, image=image)
    return sandbox.choose(engine, facts, sandbox.python_trial(spec, python))
