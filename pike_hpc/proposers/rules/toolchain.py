"""What this machine offers to rules: a C++ compiler, Python's headers, fast bfloat16, TensorRT.

Probed once by whoever asks; holds no state. Where workers run in an image, probe in the image
or state its toolchain: this module knows only the machine it runs on.
"""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

COMPILERS = ("g++", "clang++", "c++")
"""In the order in which torch.compile would find one."""

BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""Names in /proc/cpuinfo (x86 flags, ARM features) of instructions that multiply bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Facts about the machine that builds and runs candidates."""

    compiler: str | None
    """Path of a C++ compiler."""
    python_headers: bool
    """Whether Python.h is there."""
    cpu_bfloat16: bool = False
    """Whether the CPU multiplies bfloat16 in hardware."""
    tensorrt: bool = False
    """Whether the package torch_tensorrt is installed."""

    @property
    def lacks(self) -> str | None:
        """What torch.compile misses here, with the Debian package to install; None if nothing."""
        missing = [] if self.compiler else ["a C++ compiler (Debian package g++)"]
        missing += [] if self.python_headers else ["Python's headers (Debian package python3-dev)"]
        return " and ".join(missing) or None


def probe_toolchain(cpuinfo: Path = Path("/proc/cpuinfo")) -> Toolchain:
    """Look for compiler, headers and CPU features on this machine."""
    found = (shutil.which(name) for name in COMPILERS)
    return Toolchain(
        compiler=next((path for path in found if path), None),
        python_headers=(Path(sysconfig.get_paths()["include"]) / "Python.h").is_file(),
        cpu_bfloat16=bool(BFLOAT16_FLAGS & _cpu_flags(cpuinfo)),
        tensorrt=importlib.util.find_spec("torch_tensorrt") is not None,
    )


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
