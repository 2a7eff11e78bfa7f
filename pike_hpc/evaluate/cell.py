"""What every process of a lane is kept in: engine, folder, limits, environment. No torch."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pike_hpc import sandbox
from pike_hpc.evaluate.alone import START
from pike_hpc.evaluate.bailiff import JudgeProcess
from pike_hpc.evaluate.contained import PACKAGE, START_JUDGE, ContainedJudge
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.machine import own_cpus
from pike_hpc.records import Isolation

RUNNER = Path(__file__).with_name("runner")

_KEEPS_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""Tensors up to here come from memory that the runner keeps. Larger ones are mapped anew in each
call, and every page faults: whoever had glibc keep them (mallopt(3)) was 2.6 to 4.8 times as fast
as the same relu of 64 MB. It takes the lane's trim threshold as well. Not the judge: it lives long,
and what it keeps is lost to others."""

_GIVES_BACK = dict.fromkeys(
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True"
)
"""Of a GPU's memory the judge keeps what it uses and no whole blocks around that: without it 8 GiB
stayed for small tensors after a call that took 4 (one H100, torch 2.11, 2026-11-27). The second
name is deprecated; torch 2.9 knew this setting by it alone. Not the runners: a program is to run
as it would for others."""

_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The judge's tensors of 2 MiB and more ask for huge pages, if the kernel has some for who asks: it
makes and drops hundreds of megabytes, and to copy 200 MB took 46 ms by pages of 4 KiB, 11 ms so
(`clone` in a script that is not kept; two cores, torch 2.13, 2026-11-28). Not the runners'."""

_ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""In place of eight. A context has channels for each, and the driver makes and ends all channels of
a machine under one lock (docs/adr/0022): for whoever has one stream."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Starts runners, each under a warden, and the judge: in the image, where there is one."""

    engine: sandbox.Engine
    folder: Path
    """The lane's."""
    device: str
    """cpu or cuda."""
    gpu: str | None = None
    """UUID of the one GPU that there is inside; None for all of them."""
    threads: int
    python: str = sys.executable
    image: str | None = None
    memory_mb: int
    scratch_mb: int
    processes: int
    read_only: tuple[Path, ...] = ()
    """What a runner may read beside Python's own folders: compilers."""
    libraries: Path | None = None
    """Where builds and compile caches lie that the judge hands to runners."""
    extra: Mapping[str, str]
    """Of the environment."""
    facts: sandbox.HostFacts = field(default_factory=sandbox.look)

    def start(self, number: int, address: Path, role: RunnerRole) -> Ward:
        """A runner that connects to `address`, whose folder goes when it has ended."""
        place = self.folder / f"w{number}"
        place.mkdir()
        sandbox.give_scratch(place, self.facts)
        spec = self._spec(str(address), address.parent, place, one_connection=role.one_connection)
        return Ward(
            self._argv(spec),
            env={"PATH": _PATH},
            cwd=self.folder,
            remove=[place, address.parent],
        )

    def start_judge(self, folder: Path) -> JudgeProcess | ContainedJudge:
        """A judge whose runners' sockets, and all that it writes, lie in `folder`."""
        on_gpu = {**_GIVES_BACK, **_ONE_CONNECTION} if self.device == "cuda" else {}
        extra = {**self._own, **_HUGE_PAGES, **on_gpu}
        env = sandbox.environment(folder, threads=self.threads, extra=extra)
        if not self.engine.runs_image:
            return JudgeProcess(self.python, folder, env)
        start = (self._inside[0], "-I", "-B", "-u", "-c", START_JUDGE)
        spec = sandbox.SandboxSpec(
            argv=(*start, str(PACKAGE.parent), str(folder)),
            read_only=(PACKAGE, *((self.libraries,) if self.libraries else ())),
            shared=(folder,),
            env=env,
            cpus=own_cpus(),
            gpu=self.device == "cuda",
            image=self.image,
            trusted=True,
        )
        return ContainedJudge(self._argv(spec), folder, env={"PATH": _PATH}, cwd=self.folder)

    def _argv(self, spec: sandbox.SandboxSpec) -> list[str]:
        argv = sandbox.command(self.engine, spec, self.facts)
        program = shutil.which(argv[0], path=_PATH) or shutil.which(argv[0]) or argv[0]
        return [program, *argv[1:]]

    def measure(self) -> Isolation:
        """What separates a candidate from everything else here, by attacks."""
        # A runner is shown one folder with sockets, never the lane's: what the attack is aimed at
        # lies in that one, and belongs to the same user unless we are root.
        with tempfile.TemporaryDirectory(prefix="m", dir=self.folder) as sockets:
            Path(sockets).chmod(0o755)
            spec = self._spec("true", Path(sockets), self.folder)
            return sandbox.measure(
                self.engine, self.facts, spec, python=self._inside[0], folder=self.folder
            )

    @property
    def _own(self) -> dict[str, str]:
        """Of the environment, what is the lane's."""
        visible = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}
        return {**visible, **self.extra}

    @property
    def _inside(self) -> tuple[str, tuple[Path, ...]]:
        return sandbox.interpreter(self.engine, self.python)

    def _spec(
        self, address: str, sockets: Path, place: Path, *, one_connection: bool = False
    ) -> sandbox.SandboxSpec:
        python, shown = self._inside
        start = (python, "-I", "-B", "-u", "-c", START)
        spec = sandbox.SandboxSpec(
            argv=(*start, str(RUNNER), address, self.device),
            read_only=(*shown, *self.read_only, RUNNER, sockets),
            env={},
            scratch_mb=self.scratch_mb,
            memory_mb=self.memory_mb,
            processes=self.processes,
            cpus=own_cpus(),
            gpu=self.device == "cuda",
            gpu_uuid=self.gpu or "",
            image=self.image,
            scratch=place,
        )
        inside = sandbox.home(self.engine, spec) or place
        connections = _ONE_CONNECTION if one_connection and self.device == "cuda" else {}
        extra = {**self._own, **_KEEPS_BLOCKS, **connections}
        env = sandbox.environment(inside, threads=self.threads, extra=extra)
        return replace(spec, env=env)
