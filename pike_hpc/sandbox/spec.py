"""What is to run in a sandbox, and which kinds of sandbox there are.

Contract: a `SandboxSpec` says everything that a program may see and use; what it does not name is
absent inside. It does not know how an engine keeps that promise: `measure` finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pike_hpc.records import UsageError

SCRATCH = Path("/tmp")  # noqa: S108 - the sandbox's own tmpfs, not the host's folder
"""Scratch folder, home and working folder inside every engine with a file system of its own."""


class Engine(StrEnum):
    """What keeps an untrusted program apart. The values are those of `container.engine`."""

    NONE = "none"
    """A bare process: another uid where we are root, no privileges, limits, clean environment."""
    UNSHARE = "unshare"
    """Namespaces made by `pike_hpc.sandbox.enter`; needs nothing but a kernel that allows them."""
    BUBBLEWRAP = "bubblewrap"
    APPTAINER = "apptainer"
    PODMAN_HPC = "podman-hpc"
    DOCKER = "docker"
    PODMAN = "podman"

    @property
    def runs_image(self) -> bool:
        """Whether it needs a container image, whose Python is then the program's."""
        return self is Engine.APPTAINER or self.is_container

    @property
    def is_container(self) -> bool:
        """Whether a container's client makes it: see `pike_hpc.sandbox.containers`."""
        return self in (Engine.PODMAN_HPC, Engine.DOCKER, Engine.PODMAN)

    @property
    def own_file_system(self) -> bool:
        """Whether the program sees a root of its own, with SCRATCH in it."""
        return self is not Engine.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """One program to run apart. Paths are absolute."""

    argv: tuple[str, ...]
    read_only: tuple[Path, ...] = ()
    """Bound read-only at the same path: Python's prefixes, the package. A folder of sockets that
    the other side listens on belongs here too: connecting does not write."""
    shared: tuple[Path, ...] = ()
    """Bound writable at the same path. What lies there is limited by no `scratch_mb`."""
    env: Mapping[str, str]
    """The whole environment inside; nothing is inherited."""
    scratch_mb: int = 512
    """Size of SCRATCH and of /dev/shm (each), and of any single file that is written."""
    memory_mb: int = 0
    """RLIMIT_DATA of each process, and of all together in a control group; 0 for no limit."""
    processes: int = 256
    """Processes and threads together, where the engine counts them apart from everybody else's."""
    cpus: tuple[int, ...] = ()
    """CPUs that it is started on in a container, which does not pass on those of who asks for it;
    all where there are none. Every other engine passes them on."""
    gpu: bool = False
    """Whether NVIDIA's device nodes exist inside."""
    gpu_uuid: str = ""
    """The one GPU that has a device node inside, where bubblewrap or unshare makes them and its own
    is known; empty for all. So no program can compute on a sibling, and contexts are made faster
    (docs/adr/0011)."""
    image: str | None = None
    """Container image, for engines that run one."""
    trusted: bool = False
    """A program of ours, for engines that run an image: it has all system calls, our own uid, this
    host's name, and no limits. What it is not shown is as absent as for any other."""
    scratch: Path | None = None
    """Working folder for engine none, which has no SCRATCH of its own, and where apptainer keeps
    its SCRATCH: see `give_scratch`."""

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError("a sandbox needs a program to run")
        named = (*self.read_only, *self.shared, *((self.scratch,) if self.scratch else ()))
        for path in named:
            if not path.is_absolute():
                raise UsageError("a sandbox's paths are absolute", where=str(path))
        texts = (*self.argv, *self.env, *self.env.values(), *map(str, named))
        if any("\0" in text for text in texts) or any("=" in name for name in self.env):
            raise UsageError("a NUL byte, or '=' in the name of a variable", where="sandbox")
        if self.scratch_mb < 1 or self.processes < 1 or self.memory_mb < 0:
            raise UsageError(
                "a sandbox's limits are positive",
                where=f"scratch_mb={self.scratch_mb} processes={self.processes} "
                f"memory_mb={self.memory_mb}",
            )


def home(engine: Engine, spec: SandboxSpec) -> Path | None:
    """Where the program starts and may write: HOME and TMPDIR inside. None: the caller's folder."""
    return SCRATCH if engine.own_file_system else spec.scratch


def environment(
    folder: Path, *, threads: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The smallest environment in which Python, torch and its compilers work.

    Args:
        folder: scratch folder inside; every cache goes there.
        threads: for OpenMP, MKL and OpenBLAS, and the compilers that torch.compile starts.
        extra: more variables, which win.
    """
    place = str(folder)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": place,
        "TMPDIR": place,
        "XDG_CACHE_HOME": f"{place}/.cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{place}/inductor",
        # What /proc/cpuinfo names is used: trying it out means compiling anew in each cache.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        # Else as many as the machine has cores, in each of its lanes.
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "TRITON_CACHE_DIR": f"{place}/triton",
        # There may be no passwd entry for the uid: getpass.getuser() asks these first.
        "USER": "candidate",
        "LOGNAME": "candidate",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }
