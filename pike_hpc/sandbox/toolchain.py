"""Where compilers of extensions lie on this host, and what a sandbox needs to use them.

Contract: `toolchain` looks once; everything it names is shown read-only and found by PATH inside.
The system's own compilers come with the system's folders.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pike_hpc.sandbox.host import SYSTEM_FOLDERS

_DEFAULT_CUDA = "/usr/local/cuda"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_STUBS = "lib64/stubs"
"""Stands in for the driver's libraries when something is linked where no GPU is."""
_PARTS = ("bin/nvcc", "include/cuda_runtime.h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """nvcc and ninja, as a sandboxed program finds them."""

    cuda_home: Path | None = None
    read_only: tuple[Path, ...] = ()
    """Folders outside the system's that have to be shown."""
    env: Mapping[str, str] = field(default_factory=dict)
    """PATH, and with a toolkit LIBRARY_PATH, CUDA_HOME where it is this host's; where bytecode is
    read from, if not from beside its sources."""


def toolchain(
    environ: Mapping[str, str], *, image: str | None = None, python: str = sys.executable
) -> Toolchain:
    """The toolchain that this environment names; absent parts are left out.

    Args:
        environ: CUDA_HOME, CUDA_PATH and PATH are read, in that order.
        image: the container image that programs run in, where there is one: its own toolkit, at
            the usual place, then counts.
        python: an interpreter, beside which pip puts ninja.
    """
    cuda = None if image else _cuda_home(environ)
    folders = [f"{cuda or _DEFAULT_CUDA}/bin"] if cuda or image else []
    beside = Path(python).parent
    if image is None and (beside / "ninja").exists():
        folders.append(str(beside))
    env = {"PATH": ":".join((*folders, _PATH))}
    if cuda or image:
        env["LIBRARY_PATH"] = f"{cuda or _DEFAULT_CUDA}/{_STUBS}"
    if cuda is not None:
        env["CUDA_HOME"] = str(cuda)
    outside = cuda is not None and not str(cuda).startswith(tuple(f"{s}/" for s in SYSTEM_FOLDERS))
    return Toolchain(
        cuda_home=cuda, read_only=(cuda,) if cuda is not None and outside else (), env=env
    )


def _cuda_home(environ: Mapping[str, str]) -> Path | None:
    """The folder above bin/nvcc, links resolved; None where there is no nvcc."""
    named = [environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), _DEFAULT_CUDA]
    found = shutil.which("nvcc", path=environ.get("PATH", _PATH))
    if found is not None:
        named.insert(2, str(Path(found).resolve().parents[1]))
    for name in named:
        # A wrapper in /usr/local/bin is no toolkit: that has headers too.
        if name and all((Path(name) / part).is_file() for part in _PARTS):
            return Path(name).resolve()
    return None
