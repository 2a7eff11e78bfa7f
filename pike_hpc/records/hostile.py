"""Hostile text: sources, logs, notes and names that a program, a model or a stranger wrote.

Records carry it exactly as it came. Whoever shows it, stores its end or puts it into a prompt
takes the escapes out first; what else is unfit depends on where it goes.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, links, keys
    r"|\x1b[ -/]*[0-~]?"  # the rest
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 byte
)
"""Control sequences and control strings of ECMA-48."""


def without_escapes(text: str) -> str:
    """The text without what a terminal would obey, its line ends as line feeds."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
