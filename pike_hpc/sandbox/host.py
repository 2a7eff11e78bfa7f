"""What this host offers to sandboxes. The only place of this package that looks.

Contract: `look()` reads the host once into `HostFacts`; everything after is a function of it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.sandbox.groups import handed_over
from pike_hpc.sandbox.spec import Engine

NOBODY = 65534
"""The kernel's overflow uid and gid: owns nothing on a sane host."""

IMAGE_PYTHON = "python3"
"""What an image's Python is called inside it, with torch: see containers/README.md."""

IMAGE_PATH = "/opt/conda/bin"
"""Where an image may have it beside the usual folders: PyTorch's own do (Dockerfile of pytorch)."""

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Programs, compilers, libraries and headers."""

ETC_ESSENTIALS = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
"""What linkers and compilers read from /etc; nothing else of it is shown."""

SYSTEM_TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Where torch, OpenMP and cpuinfo count cores and caches."""

GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver tells of each GPU, in a folder by its place on the bus."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

CLIENT_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "PATH", "LANG", "TMPDIR"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("SCRATCH", "SQUASH_DIR", "SLURM_LOCALID"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
"""What a container's client finds images and settings by; with those that begin PODMANHPC_."""

PER_NAMESPACE_COUNTS = (5, 14)
"""First kernel that counts RLIMIT_NPROC per user namespace (commit 21d1c5e386bc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A host as sandboxes see it."""

    uid: int
    gid: int
    kernel: tuple[int, int]
    python: str
    """An interpreter, for `pike_hpc.sandbox.enter` and `narrow`."""
    machine: str = ""
    """As `uname -m` says it; where it is none of `filter.MACHINES`, no system call is refused."""
    programs: frozenset[str] = frozenset()
    """Those of setpriv, prlimit, unshare, bwrap and apptainer that are on PATH."""
    system: tuple[str, ...] = ()
    """System files and folders that exist, to be shown read-only."""
    links: tuple[tuple[str, str], ...] = ()
    """System folders that are symbolic links on a merged-/usr host: (path, target)."""
    devices: tuple[str, ...] = DEVICES
    gpu_devices: tuple[str, ...] = ()
    """NVIDIA's device nodes, those that belong to no single GPU among them."""
    gpu_nodes: tuple[tuple[str, str], ...] = ()
    """(UUID, device node) of each GPU, as far as the driver tells them."""
    client_env: tuple[tuple[str, str], ...] = ()
    """All variables that a container's client is started with; none of them gets inside."""
    control_group: str = ""
    """A folder of cgroup v2 below which sandboxes may have groups of their own; see `groups`."""

    @property
    def is_root(self) -> bool:
        """Whether we are real root and must become somebody else."""
        return self.uid == 0

    @property
    def candidate_uid(self) -> int:
        """The uid that a sandboxed program has outside, on the host's file systems."""
        return NOBODY if self.is_root else self.uid

    @property
    def counts_per_namespace(self) -> bool:
        """Whether a limit on processes counts a user namespace's own processes only."""
        return self.kernel >= PER_NAMESPACE_COUNTS


def look() -> HostFacts:
    """The facts of this host, for this user, now."""
    # The judge imports this package in images, which hold no YAML.
    from pike_hpc.config import env  # noqa: PLC0415

    folders = [Path(p) for p in SYSTEM_FOLDERS]
    links = tuple((str(p), str(p.readlink())) for p in folders if p.is_symlink())
    plain = [str(p) for p in folders if p.is_dir() and not p.is_symlink()]
    rest = [p for p in (*ETC_ESSENTIALS, *SYSTEM_TOPOLOGY) if Path(p).exists()]
    found = (p for p in ("setpriv", "prlimit", "unshare", "bwrap", "apptainer") if shutil.which(p))
    return HostFacts(
        uid=os.getuid(),
        gid=os.getgid(),
        kernel=_kernel(platform.release()),
        python=sys.executable,
        machine=platform.machine(),
        programs=frozenset(found),
        system=(*plain, *rest),
        links=links,
        devices=tuple(d for d in DEVICES if Path(d).exists()),
        gpu_devices=tuple(
            str(p) for p in sorted(Path("/dev").glob("nvidia*")) if p.is_char_device()
        ),
        gpu_nodes=gpu_nodes(),
        client_env=_client_env(env.environ()),
        control_group=handed_over(),
    )


def gpu_nodes(told: Path = GPUS) -> tuple[tuple[str, str], ...]:
    """(UUID, device node) of each GPU that NVIDIA's driver tells both of, below `told`.

    Of a GPU that nobody has used since the driver was loaded it may not know the UUID.
    """
    found = []
    for file in sorted(told.glob("*/information")):
        try:
            lines = file.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
        said = {name.strip(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
        uuid, minor = said.get("GPU UUID", ""), said.get("Device Minor", "")
        if uuid and "?" not in uuid and minor.isdecimal():
            found.append((uuid, f"/dev/nvidia{minor}"))
    return tuple(found)


def interpreter(engine: str, python: str) -> tuple[str, tuple[Path, ...]]:
    """What Python is started as inside, and what has to be shown for it.

    Args:
        engine: a value of container.engine. The image of one that runs an image has its own.
        python: this environment's interpreter, for the others.
    """
    with_image = engine in list(Engine) and Engine(engine).runs_image
    return (IMAGE_PYTHON, ()) if with_image else (python, python_prefixes())


def python_prefixes() -> tuple[Path, ...]:
    """What this interpreter needs to be shown: its environment and the one below it."""
    return tuple(Path(p) for p in dict.fromkeys((sys.prefix, sys.base_prefix)))


def give_scratch(folder: Path, facts: HostFacts) -> None:
    """Make an existing folder the candidate's own, with nobody else looking in (mode 0700).

    Its parents must be traversable for `facts.candidate_uid`. Raises OSError.
    """
    folder.chmod(0o700)
    if facts.is_root:
        os.chown(folder, NOBODY, NOBODY)


def _client_env(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    named = {
        name: value
        for name, value in environ.items()
        if name in CLIENT_VARIABLES or name.startswith("PODMANHPC_")
    }
    return tuple(sorted(named.items()))


def _kernel(release: str) -> tuple[int, int]:
    major, minor, *_ = (*release.split("."), "0")
    digits = "".join(c for c in minor if c.isdigit())
    return (int(major) if major.isdigit() else 0, int(digits or 0))
