"""What a candidate printed, made fit to be stored and shown: no terminal escapes, bounded."""

from __future__ import annotations

from pike_hpc.records import without_escapes

TAIL_CHARS = 16_000
"""Enough for a compiler's last errors; a result travels through mailbox, journal and prompts."""


def clean(text: str) -> str:
    """The last TAIL_CHARS of hostile text, with line ends and tabs as its only controls."""
    text = without_escapes(text[-4 * TAIL_CHARS :])
    kept = "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
    return kept[-TAIL_CHARS:]
