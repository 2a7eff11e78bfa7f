"""What the compilers behind torch.compile and Triton left in a program's caches, as one archive.

Contract: `pack` writes it into a file of fixed size, `unpack` puts it back before the same program
is imported in another process, without modes: libraries are loaded, nothing of it is executed.
Both run where the program runs, so nobody else opens an archive.
Knows nothing of who keeps it.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

HEAD = struct.Struct("<Q")
"""Bytes of the archive that follow; 0 for none."""

CACHE_BYTES = 1 << 26
"""Of the file. MobileNetV1's kernels for a CPU are 1.7 MB before they are packed."""

FOLDERS = ("inductor", "triton")
"""Of the scratch folder, where `sandbox.environment` has the compilers put them."""

_LEVEL = 1
"""Of zlib: mostly text, and the lane waits."""


def pack(fd: int, scratch: Path) -> None:
    """Write all there is to the file; nothing where that is nothing, or too much."""
    files = list(_files(scratch))
    if not files or sum(path.stat().st_size for _, path in files) > 4 * CACHE_BYTES:
        return
    content = io.BytesIO()
    with zipfile.ZipFile(
        content, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL, strict_timestamps=False
    ) as archive:
        for name, path in files:
            archive.write(path, name)
    packed = content.getvalue()
    if HEAD.size + len(packed) <= CACHE_BYTES:
        os.pwrite(fd, packed, HEAD.size)
        os.pwrite(fd, HEAD.pack(len(packed)), 0)


def unpack(fd: int, scratch: Path) -> None:
    """Put back what an archive holds, all or nothing, and close it.

    Raises OSError, zipfile.BadZipFile.
    """
    try:
        with os.fdopen(fd, "rb") as file, zipfile.ZipFile(file) as archive:
            archive.extractall(scratch)
    except BaseException:
        for folder in FOLDERS:  # compilers would take half a file for a whole one
            shutil.rmtree(scratch / folder, ignore_errors=True)
        raise


def _files(scratch: Path) -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in sorted((scratch / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(scratch)), path
