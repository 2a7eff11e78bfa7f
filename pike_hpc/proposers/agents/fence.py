"""Foreign text made fit for a prompt: no escapes, bounded, fenced so that it can't end its block.

Candidate sources and logs are hostile wherever shown. Servers that put a prompt together as text
read some words as the end of a message, wherever they stand: those are broken up. Knows no prompt.
"""

from __future__ import annotations

import re

from pike_hpc.records import without_escapes

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters but tab and newline, and those that hide or reorder text."""

_TURNS = re.compile(
    r"[<|\uff5c\[\]](?:"  # first of all, so that a search skips from one of these to the next
    r"(?<=<)(?=[|\uff5c])|(?<=[|\uff5c])(?=>)"  # <|im_end|> and its kind
    r"|(?<=<)(?=/?s>|(?:start|end)_of_turn>|bos>|eos>)|(?<=<)(?=<SYS>>|</SYS>>)"
    r"|(?<=\[)(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|THINK)\])"  # Mistral's
    r"|(?<=\[)(?=(?:TOOL_CALLS|TOOL_CONTENT|CALL_ID|ARGS)\])"
    r"|(?<=\])(?=~!?b[\[\]])|(?<=\[)(?=e~\[))"  # MiniMax's ]~!b[ ]~b] [e~[
)
"""The character of a word, by which chat templates tell messages apart, that is to end there."""


def clean(text: str) -> str:
    """The text without terminal escapes, control characters, ends of turns, lone surrogates."""
    text = _TURNS.sub(r"\g<0> ", _CONTROLS.sub("", without_escapes(text)))
    return text.encode("utf-8", "replace").decode("utf-8")


def head_and_tail(text: str, limit: int) -> str:
    """At most about `limit` characters: the beginning and the end, and what was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"


def tail(text: str, limit: int) -> str:
    """At most about `limit` characters from the end."""
    if len(text) <= limit:
        return text
    return f"[{len(text) - limit} characters left out]\n{text[-limit:]}"


def fenced(text: str, language: str = "") -> str:
    """A block whose fence is longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = text if text.endswith("\n") else text + "\n"
    return f"{fence}{language}\n{body}{fence}"


def one_line(text: str, limit: int) -> str:
    """The text in one line of at most `limit` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
