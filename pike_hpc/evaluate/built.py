"""What was compiled for a candidate: libraries and caches for its runner, or why none can run.

No torch. All of it was made by the candidate's own code: only that candidate is ever given it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.buffers import sealed_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A file in the builder's folder."""

    path: str
    sha256: str
    """Of its bytes, as they came."""

    def content(self) -> bytes | None:
        """Its bytes; None where the file is gone, or is not what came."""
        try:
            content = Path(self.path).read_bytes()
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == self.sha256 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library(Kept):
    """A shared library."""

    key: str
    """Of the call that made it, in hexadecimal: `call_key` of evaluate.runner.extensions."""
    name: str
    """Of the module in it."""
    is_module: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of one build, and of the last run."""

    libraries: tuple[Library, ...] = ()
    cache: Kept | None = None
    """What the compilers behind torch.compile and Triton left in a run: an archive."""
    seconds: float = 0.0
    """Of import and compilers, without the start of Python."""
    failed: bool = False
    """Whether the import was ended by a compiler's error: then no run is needed."""
    tail: str = ""
    """The end of what was printed. Hostile text."""


NOTHING = Built()


def open_built(built: Built) -> tuple[list[dict[str, Any]], list[int], bool]:
    """For a runner: the libraries that are still whole, sealed files, whether one is the cache.

    Those of the libraries come first; the caller closes them.
    """
    listed, files = [], []
    for library in built.libraries:
        content = library.content()
        if content is not None:
            files.append(sealed_file("library", content))
            listed.append(
                {"key": library.key, "name": library.name, "is_module": library.is_module}
            )
    cache = built.cache.content() if built.cache is not None else None
    if cache is not None:
        files.append(sealed_file("cache", cache))
    return listed, files, cache is not None
