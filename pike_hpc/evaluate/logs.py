"""What a candidate printed, made fit to be stored and shown: no terminal escapes, bounded."""

from __future__ import annotations

import re

TAIL_CHARS = 16_000
"""Enough for a compiler's last errors; a result travels through mailbox, journal and prompts."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[P^_X][^\x1b]*(?:\x1b\\)?"  # DCS, PM, APC, SOS
    r"|\x1b[ -/]*[0-~]?"  # the rest
)


def clean(text: str) -> str:
    """The last TAIL_CHARS of hostile text, with line ends and tabs as its only controls."""
    text = _ESCAPES.sub("", text[-4 * TAIL_CHARS :]).replace("\r\n", "\n").replace("\r", "\n")
    kept = "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
    return kept[-TAIL_CHARS:]
