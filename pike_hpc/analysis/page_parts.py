"""Pieces of the page that several sections use: tables, facts, marks, speedups in colour.

Everything here returns `Html` and takes plain text; escaping is markup's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pike_hpc.analysis.markup import Html, join, tag
from pike_hpc.analysis.metrics import Best
from pike_hpc.analysis.report import Group, TaskReport
from pike_hpc.analysis.text import times
from pike_hpc.records import Variant


def grid(headings: Sequence[tuple[str, str]], rows: Iterable[Html]) -> Html:
    """A table that scrolls sideways on small screens. Headings are (text, class)."""
    head = tag("tr", *(tag("th", text, class_=kind or None) for text, kind in headings))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")


def row(cells: Iterable[tuple[str, str]], class_: str | None = None) -> Html:
    """A table row of (content, class)."""
    return tag("tr", *(tag("td", c, class_=kind or None) for c, kind in cells), class_=class_)


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Names and values side by side; pairs with an empty value are left out."""
    shown = (join(tag("dt", name), tag("dd", value)) for name, value in pairs if value)
    return tag("dl", *shown, class_="facts")


def folded(title: Html | str, inside: Html, *, is_open: bool = False) -> Html:
    """Content behind a title that opens it, without a script."""
    parts = (tag("summary", title), tag("div", inside, class_="inside"))
    return tag("details", *parts, open="" if is_open else None)


def gain(best: Best | None) -> Html:
    """A speedup over eager: coloured only where its interval leaves 1.00 out."""
    if best is None:
        return tag("span", "-")
    low, high = best.ci95
    kind = "gain" if low > 1.0 else "loss" if high < 1.0 else None
    unproven = "~" if kind is None else ""
    return tag("span", unproven + times(best.speedup), class_=kind)


def unconfirmed(best: Best) -> Html:
    """The mark of a speedup that is the search's own value."""
    return Html() if best.retimed else tag("span", " not timed again", class_="soft")


def marks(of: TaskReport | Group) -> Html:
    """Loud signs for numbers that must not be taken for measurements of ours."""
    signs = []
    if of.simulated:
        signs.append(tag("span", "SIMULATED", class_="mark"))
    if of.variant is Variant.LEGACY:
        signs.append(tag("span", "LEGACY", class_="mark"))
    return join(*signs)
