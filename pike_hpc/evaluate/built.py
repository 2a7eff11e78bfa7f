"""What building a candidate gave: libraries for its runner, or why there is nothing to run.

No torch. A library was made by the candidate's own code: it is only ever loaded by that candidate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.buffers import sealed_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library in the builder's folder."""

    key: str
    """Of the call that made it, in hexadecimal: `call_key` of evaluate.runner.extensions."""
    name: str
    """Of the module in it."""
    is_module: bool
    path: str
    sha256: str
    """Of its bytes, as they came out of the build."""

    def content(self) -> bytes | None:
        """Its bytes; None where the file is gone, or is not what was built."""
        try:
            content = Path(self.path).read_bytes()
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == self.sha256 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of one build."""

    libraries: tuple[Library, ...] = ()
    seconds: float = 0.0
    """Of import and compilers, without the start of Python."""
    failed: bool = False
    """Whether the import was ended by a compiler's error: then no run is needed."""
    tail: str = ""
    """The end of what was printed. Hostile text."""


NOTHING = Built()


def open_libraries(libraries: Sequence[Library]) -> tuple[list[dict[str, Any]], list[int]]:
    """For a runner's setup: what there is, and a sealed file of each that is still whole.

    The caller closes the descriptors.
    """
    listed, files = [], []
    for library in libraries:
        content = library.content()
        if content is not None:
            files.append(sealed_file("library", content))
            listed.append(
                {"key": library.key, "name": library.name, "is_module": library.is_module}
            )
    return listed, files
