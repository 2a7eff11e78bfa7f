"""Builds candidates ahead of their runs: imports them where no GPU is and keeps what they compile.

Host side, without torch. Contract: `submit` starts a build as soon as a core is free, `take` waits
for it. A build runs in a sandbox of its own, under a warden, without GPU and network, at the
lowest priority; what it made is filed under the exact text of the candidate and given to that
candidate alone. So is what `keep` is told of: the caches that compilers filled during a run.
Whatever goes wrong here but an error of a compiler is left to the run, which builds by itself what
it is not given. Knows nothing of judging.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

from pike_hpc import sandbox
from pike_hpc.evaluate.build_link import BuildLink, Job, Made
from pike_hpc.evaluate.built import NOTHING, Built, Kept, Library
from pike_hpc.evaluate.device import torch_version
from pike_hpc.evaluate.logs import clean
from pike_hpc.evaluate.ward import Ward
from pike_hpc.machine import own_cpus, remove_tree
from pike_hpc.records import EvalRequest, digest

BUILDER_VERSION = "1"
"""Part of every key: raised when the same text may be built to something else."""

TIMEOUT_S = 240.0
"""For one build; 20 to 90 s are usual with nvcc and all of torch's headers."""

JOBS_EACH = 2
"""Compilers of one build at once: the bindings beside the kernels."""

_RUNNER = Path(__file__).with_name("runner")
_START_BUILD = """
import importlib, importlib.util, os, sys
os.nice(19)
sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX")
folder, address = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "pike_runner", folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
importlib.import_module("pike_runner.build").main(address)
"""
_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Builder:
    """A pool of builds. For several threads at once; a context manager."""

    def __init__(
        self,
        engine: sandbox.Engine,
        *,
        scratch: Path,
        tools: sandbox.Toolchain,
        arch: str | None = None,
        python: str = sys.executable,
        image: str | None = None,
        cpus: Collection[int] = (),
        keep_mb: int = 1024,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Make the pool's folders; nothing runs yet.

        Args:
            engine: what builds are kept in, as `sandbox.choose` gives it.
            scratch: a node-local folder, short: sockets go below it.
            tools: compilers, as `sandbox.toolchain` finds them.
            arch: compute capability of the GPU that will run them, such as 9.0; None without.
            python: the interpreter, with torch.
            image: container image, for engines that run one.
            cpus: those that builds may use; all of this thread's where there are none.
            keep_mb: of libraries, and a quarter of it of caches; those used longest ago go first.
            timeout_s: for one build.
        """
        self._engine, self._facts = engine, sandbox.look()
        self.tools, self._arch, self._python, self._image = tools, arch, python, image
        self._timeout_s = timeout_s
        cpus = cpus or own_cpus()
        at_once = max(1, len(cpus) // JOBS_EACH)
        memory_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        self._memory_mb = max(4096, memory_mb // (2 * at_once))
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="build-", dir=scratch)).resolve()
        self.folder.chmod(0o711)
        self._shelf: Shelf[Built] = Shelf(keep_mb << 20)
        self._caches: Shelf[Kept] = Shelf(keep_mb << 18)
        self._under_way: dict[str, concurrent.futures.Future[Built]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            at_once, "build", initializer=os.sched_setaffinity, initargs=(0, cpus)
        )
        self._closed = False

    def __enter__(self) -> Builder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, request: EvalRequest) -> None:
        """Have the request's candidate built, unless it is known or compiles nothing."""
        self._start(request)

    def is_idle(self, request: EvalRequest) -> bool:
        """Whether no build of the request's candidate waits or runs."""
        with self._lock:
            return self._key(request.candidate_source) not in self._under_way

    def take(self, request: EvalRequest, timeout_s: float = 2 * TIMEOUT_S) -> Built:
        """What building gave, waiting for it at most so long, and what the last run left."""
        future, built = self._start(request), NOTHING
        if future is not None:
            try:
                built = future.result(timeout_s)
            except (concurrent.futures.CancelledError, TimeoutError):
                built = NOTHING
        with self._lock:
            cache = self._caches.get(self._key(request.candidate_source))
        return replace(built, cache=cache)

    def keep(self, request: EvalRequest, left: Path) -> None:
        """File what compilers made in a run of the request's candidate; the file moves here."""
        key = self._key(request.candidate_source)
        with self._lock:
            if self._closed:
                return
            self._number += 1
            folder = self.folder / f"c{self._number}"
        gone = [folder]
        try:
            folder.mkdir(mode=0o700)
            path = left.replace(folder / "cache")
            with path.open("rb") as file:
                kept = Kept(path=str(path), sha256=hashlib.file_digest(file, "sha256").hexdigest())
            with self._lock:
                if not self._closed:
                    gone = self._caches.put(key, kept, folder)
        except OSError:  # no room, or the judge is gone: it is compiled again
            left.unlink(missing_ok=True)
        for each in gone:
            remove_tree(each)

    def close(self) -> None:
        """End every build and forget all. Can be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._stop_write, b"!")
        self._pool.shutdown(wait=True, cancel_futures=True)
        os.close(self._stop_write)
        os.close(self._stop_read)
        remove_tree(self.folder)

    def _start(self, request: EvalRequest) -> concurrent.futures.Future[Built] | None:
        if not compiles(request.candidate_source):
            return None
        key = self._key(request.candidate_source)
        with self._lock:
            if self._closed:
                return None
            if key in self._under_way:
                return self._under_way[key]
            kept = self._shelf.get(key)
            if kept is not None:
                done: concurrent.futures.Future[Built] = concurrent.futures.Future()
                done.set_result(kept)
                return done
            self._number += 1
            future = self._pool.submit(self._build, key, request, self._number)
            self._under_way[key] = future
            return future

    def _key(self, source: str) -> str:
        """Only the same text gets what the text made."""
        versions = (torch_version() or "", str(self.tools.cuda_home), self._arch or "")
        return digest(source, *versions, BUILDER_VERSION)

    def _build(self, key: str, request: EvalRequest, number: int) -> Built:
        built, final = NOTHING, False
        try:
            made, tail = self._run(request, number)
            built, final = self._file(made, tail, self.folder / f"k{number}"), made.outcome_known
        except OSError:
            built = NOTHING  # no room, no processes: the run will say so where it matters
        finally:
            with self._lock:
                del self._under_way[key]
                if final:
                    for folder in self._shelf.put(key, built, self.folder / f"k{number}"):
                        remove_tree(folder)
        return built

    def _run(self, request: EvalRequest, number: int) -> tuple[Made, str]:
        """Import the candidate under a warden; what came out of it, and what it printed."""
        sockets, place = self.folder / f"s{number}", self.folder / f"w{number}"
        for folder in (sockets, place):
            folder.mkdir()
        sockets.chmod(0o755)
        sandbox.give_scratch(place, self._facts)
        job = Job(task=request.task.source, candidate=request.candidate_source, arch=self._arch)
        with BuildLink(sockets / "s") as link:
            argv = sandbox.command(self._engine, self._spec(sockets, place), self._facts)
            ward = Ward(
                argv,
                env={"PATH": _HOST_PATH},
                cwd=self.folder,
                remove=[place, sockets],
            )
            try:
                made = link.serve(job, ward, self._stop_read, self._timeout_s)
            finally:
                tail = ward.end()[1]
        return made, clean(tail)

    def _spec(self, sockets: Path, place: Path) -> sandbox.SandboxSpec:
        python, shown = sandbox.interpreter(self._engine, self._python)
        spec = sandbox.SandboxSpec(
            argv=(python, "-I", "-B", "-u", "-c", _START_BUILD, str(_RUNNER), f"{sockets}/s"),
            read_only=(*shown, *self.tools.read_only, _RUNNER, sockets),
            env={},
            scratch_mb=2048,
            memory_mb=self._memory_mb,
            processes=256,
            cpus=own_cpus(),
            gpu=False,
            image=self._image,
            scratch=place,
        )
        extra = dict(self.tools.env) | {
            "CUDA_VISIBLE_DEVICES": "",
            "MAX_JOBS": str(JOBS_EACH),
            # One more pass of nvcc, for a second build that never comes.
            "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES": "1",
        }
        if self._arch is not None:
            extra["TORCH_CUDA_ARCH_LIST"] = self._arch
        inside = sandbox.home(self._engine, spec) or place
        return replace(spec, env=sandbox.environment(inside, threads=1, extra=extra))

    def _file(self, made: Made, tail: str, folder: Path) -> Built:
        """Put libraries on the disk, in a folder that only we may enter."""
        folder.mkdir(mode=0o700)
        libraries = []
        for index, raw in enumerate(made.libraries):
            path = folder / f"{index}.so"
            path.write_bytes(raw.content)
            libraries.append(
                Library(
                    key=raw.key,
                    name=raw.name,
                    is_module=raw.is_module,
                    path=str(path),
                    sha256=raw.sha256,
                )
            )
        return Built(
            libraries=tuple(libraries),
            seconds=round(made.seconds, 3),
            failed=made.failed,
            tail=tail,
        )


T = TypeVar("T")


class Shelf(Generic[T]):
    """Things with folders by key, those used longest ago dropped first. Not for several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, tuple[T, Path, int]] = OrderedDict()

    def get(self, key: str) -> T | None:
        """What is kept under that key."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: str, thing: T, folder: Path) -> list[Path]:
        """Keep it; the folders that have to go for that, of others, its own or its forerunner."""
        gone = [self._kept.pop(key)[1]] if key in self._kept else []
        size = 0
        with contextlib.suppress(OSError):
            size = sum(file.stat().st_size for file in folder.iterdir())
        self._kept[key] = (thing, folder, size)
        while sum(size for _, _, size in self._kept.values()) > self._limit_bytes:
            gone.append(self._kept.popitem(last=False)[1][1])
        return gone


def compiles(source: str) -> bool:
    """Whether a text names what compiles extensions: all others need no build of their own.

    No defence: what hides from it is built in the run, as slowly as ever.
    """
    return "cpp_extension" in source
