"""Hostile and technical text made fit for people: one line, one meaning, nothing hidden.

Candidates, their logs, models' notes and outside task names may carry terminal escapes,
bidirectional overrides and other control characters. Knows no HTML and no terminal colours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from pike_hpc.analysis.metrics import EAGER_RULE, RULE
from pike_hpc.proposers.rules import is_stock_operator
from pike_hpc.records import EvalStatus, without_escapes

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories without a shape of their own (controls, bidi, surrogates, unassigned)."""

_STATUS_WORDS: Mapping[EvalStatus, str] = {
    EvalStatus.PASSED: "ok",
    EvalStatus.BUILD_ERROR: "build",
    EvalStatus.REJECTED: "rejected",
    EvalStatus.RUNTIME_ERROR: "crashed",
    EvalStatus.WRONG_STRUCTURE: "structure",
    EvalStatus.WRONG_RESULT: "wrong",
    EvalStatus.TIMEOUT: "timeout",
    EvalStatus.OUT_OF_MEMORY: "memory",
    EvalStatus.WORKER_LOST: "lost",
    EvalStatus.JUDGE_ERROR: "unjudged",
}

_ROLE_WORDS = {
    "brainstorm": "model: from an idea",
    "optimise": "model: optimise",
    "fix": "model: repair",
    "crossover": "model: crossover",
}


def visible(text: str) -> str:
    """The text with every shapeless character but line feed and tab written as ⟨U+202E⟩."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else f"⟨U+{ord(c):04X}⟩"
        for c in text
    )


def log_text(text: str) -> str:
    """What a program printed: terminal escapes taken out, the rest visible, lines kept."""
    return visible(without_escapes(text))


def one_line(text: str, limit: int = 300) -> str:
    """A single line of at most `limit` characters."""
    return elide(" ".join(log_text(text).split()), limit)


def elide(text: str, cells: int) -> str:
    """The text cut to so many terminal cells, its last one "…" where something was cut."""
    if cell_width(text) <= cells:
        return text
    kept, used = [], 0
    for c in text:
        used += cell_width(c)
        if used > cells - 1:
            break
        kept.append(c)
    return "".join(kept).rstrip() + "…" if cells > 0 else ""


def cell_width(text: str) -> int:
    """Terminal cells that a visible text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def operator_words(operator: str) -> str:
    """What an operator did, for people: "rules: fold batch norm + channels last"."""
    if operator == f"{RULE}{EAGER_RULE}":
        return "stock: eager, unchanged"
    if operator.startswith(RULE):
        names = [n.replace("_", " ") for n in operator.removeprefix(RULE).split("+")]
        kind = "stock" if is_stock_operator(operator) else "rules" if len(names) > 1 else "rule"
        return one_line(f"{kind}: {' + '.join(names)}")
    return _ROLE_WORDS.get(operator, one_line(operator))


def status_word(status: EvalStatus) -> str:
    """A status in one short word."""
    return _STATUS_WORDS[status]


def status_words(counts: Mapping[EvalStatus, int]) -> str:
    """Counts of verdicts in short words: "9 ok, 2 wrong"."""
    return ", ".join(f"{n} {status_word(status)}" for status, n in counts.items()) or "none"


def times(speedup: float | None) -> str:
    """A speedup: "2.31x", "128x", or "-" where there is none."""
    if speedup is None:
        return "-"
    return f"{speedup:.2f}x" if speedup < 100 else f"{speedup:.0f}x"


def interval(bounds: tuple[float, float] | None) -> str:
    """A 95 % interval: "2.22 - 2.41"."""
    if bounds is None:
        return "-"
    return " - ".join(f"{b:.2f}" if b < 100 else f"{b:.0f}" for b in bounds)


def seconds(value: float) -> str:
    """A duration in the unit people think in: "8.2 s", "12 min", "3.4 h"."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def milliseconds(value: float) -> str:
    """A latency with three significant digits and its unit."""
    return f"{value * 1000:.3g} µs" if value < 0.1 else f"{value:.3g} ms"


def dollars(value: float) -> str:
    """Money: "$0.00" only where nothing was spent."""
    if value == 0:
        return "$0.00"
    return f"${value:.2f}" if value >= 0.01 else "under $0.01"
