"""What a terminal can't show is written plainer, never a crash: `...` for an ellipsis in ASCII."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_NAME = "pike-plain"

_PLAIN = {"·": "-", "µ": "u", "⟨": "<", "⟩": ">"}
"""Of the characters in our own sentences those that have no plainer form in Unicode's tables."""


def speak_plainly() -> None:
    """Have stdout and stderr degrade what their encoding lacks; JSON of ours is ASCII anyway."""
    codecs.register_error(_NAME, plainer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)


def plainer(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs, for encoding alone: letters without their marks, else `?`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    letters = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _PLAIN.get(character) or letters or "?"
