"""How old files of a run are by the clock that stamped them: their server's, not this machine's.

The two may be minutes apart, and a sign of life is a matter of two.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path


class FileAges:
    """Of one look: the server is asked for its time once, where a file is there at all."""

    def __init__(self, folder: Path, now_s: float | None = None) -> None:
        """`folder`: where a file may be made and taken away. `now_s`: what the server says."""
        self._folder, self._now_s = folder, now_s

    def age_s(self, path: Path) -> float | None:
        """Since a file was touched; None where it is not there."""
        try:
            touched_s = path.stat().st_mtime
        except OSError:
            return None
        if self._now_s is None:
            self._now_s = _server_now_s(self._folder)
        return max(0.0, self._now_s - touched_s)


def _server_now_s(folder: Path) -> float:
    """Read off a file made now; this machine's clock where none can be made."""
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(prefix=".pike-clock-", dir=folder) as file,
    ):
        os.utime(file.fileno())
        return os.fstat(file.fileno()).st_mtime
    return time.time()
