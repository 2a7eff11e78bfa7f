"""A run carries its code: the package as a wheel, and unpacked for its jobs.

The jobs of a run import from RUN/code/lib, so that an edit between submit and start, or between
a run and its resumption, changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from pathlib import Path

import pike_hpc

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip holds: the same code gives the same bytes."""


def pack_code(run_dir: Path, package_dir: Path | None = None) -> Path:
    """Put the wheel into RUN/code and unpack it to RUN/code/lib; a run's own code is kept.

    Returns the folder that belongs on the jobs' PYTHONPATH.
    """
    code_dir = run_dir / "code"
    lib = code_dir / "lib"
    if lib.is_dir():
        return lib
    code_dir.mkdir(parents=True, exist_ok=True)
    wheel = write_wheel(package_dir or Path(pike_hpc.__file__).parent, code_dir)
    unpacked = code_dir / "lib.new"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    unpacked.rename(lib)
    return lib


def write_wheel(package_dir: Path, folder: Path) -> Path:
    """A pure-Python wheel of the package in `folder`, the same bytes for the same code.

    The format is that of the binary distribution specification (PEP 427): files, METADATA, WHEEL
    and a RECORD of digests.
    """
    version = pike_hpc.__version__
    info = f"pike_hpc-{version}.dist-info"
    files = {
        path.relative_to(package_dir.parent).as_posix(): path.read_bytes()
        for path in sorted(package_dir.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: pike-hpc\nVersion: {version}\n".encode()
    )
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: pike-hpc\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"pike_hpc-{version}-py3-none-any.whl"
    beside = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    beside.replace(wheel)
    return wheel


def _digest(data: bytes) -> str:
    raw = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
