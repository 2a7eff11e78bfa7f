"""Terminals: whether one may be drawn on, and a job of a run without that it was started from."""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from pike_hpc.config import env

_LOG_BYTES = 4_000_000
_LOG_FILES = 2


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether lines of the stream may be drawn over: a person looks, and did not ask for plain."""
    return stream.isatty() and not env.no_color(environ)


def leave_terminal(log: Path) -> None:
    """Leave the terminal's reach, so that its Ctrl-C stops the follower first; log to a file."""
    if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
        os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        log, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("pike_hpc").setLevel(logging.INFO)
