"""The end table: what a person reads in a terminal after a run.

Contract: plain text of at most `width` cells a line; colour only when asked for; nothing
hostile reaches the terminal. Knows no archive, no JSON, no page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pike_hpc.analysis.metrics import NOISY
from pike_hpc.analysis.report import Group, Report, TaskReport
from pike_hpc.analysis.summary import Mean, SelectionBias, TierSummary
from pike_hpc.analysis.text import (
    cell_width,
    dollars,
    elide,
    interval,
    one_line,
    operator_words,
    seconds,
    status_words,
    times,
)
from pike_hpc.records import EvalStatus, Tier, Variant

NARROWEST = 72
"""Below this many cells the columns lose their meaning; lines are then longer than asked."""

_BOLD, _DIM, _GREEN, _RED, _OFF = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;31m", "\x1b[0m"

_HEADINGS = ("Task", "Tier", "vs eager", "95 % interval", "vs stock", "What won", "Correct")
_RIGHT = frozenset({2, 3, 4, 6})
_FLEXIBLE = {0: 8, 5: 8}
"""Columns that give way, and the least they keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    cells: tuple[str, ...]
    colour: str = ""


def render_table(report: Report, width: int = 100, color: bool = False) -> str:
    """The whole end table as text that ends in a newline. `width` in terminal cells."""
    room = max(width, NARROWEST)
    lines: list[str] = []
    for group in report.groups:
        lines += [*_banner(group, room, color), *_grid(_rows(group), room, color)]
        verdicts = f"Verdicts: {status_words(group.status_counts)}."
        lines += [*_wrap([verdicts], room), "", *_mean_lines(group, room)]
        lines += [*_wrap(_again(group.selection), room), ""]
    if not report.tasks:
        lines += ["No task has been opened in these archives yet.", ""]
    lines += _wrap([_cost_line(report)], room)
    explained = _FOOTNOTES if report.tasks else ()
    footnotes = _wrap([*explained, *(one_line(note) for note in report.notes)], room)
    lines += [_paint(line, _DIM, color) for line in footnotes]
    return "\n".join(lines) + "\n"


_FOOTNOTES = (
    "vs eager: request latency of the reference over the candidate's, torch's shipped flags.",
    "vs stock: over the best of torch's own settings at that tier (compile, channels_last, half).",
    "Tier: precision by measured error (fp32, tf32, half); a stricter one counts in looser ones.",
    "clamped: all tasks, a failure or slow-down counts as 1.00x; unclamped: tasks with a correct "
    "candidate, as measured; [95 % interval over tasks].",
    "~: the interval holds 1.00x, no gain is proven.  Correct: of all verdicts.",
)


def _banner(group: Group, room: int, color: bool) -> list[str]:
    title = f"Results on {one_line(group.device)}: {one_line(', '.join(group.suites))}"
    lines = [_paint(elide(title, room), _BOLD, color)]
    if group.variant is Variant.LEGACY:
        lines.insert(0, "*** LEGACY variant: PIKE's own rules, for comparison, no headline ***")
    if group.simulated:
        lines.insert(0, "*** SIMULATED: verdicts made up, nothing was measured ***")
    return [_paint(line, _RED if line.startswith("***") else "", color) for line in lines]


def _rows(group: Group) -> list[_Row]:
    return [row for task in group.tasks for row in _task_rows(task)]


def _task_rows(task: TaskReport) -> list[_Row]:
    title, judged = one_line(_title(task)), task.cost.evaluations
    correct = f"{task.status_counts.get(EvalStatus.PASSED, 0)}/{judged}"
    rows: list[_Row] = []
    for best in task.winners:
        low, high = best.ci95
        cells = (
            title if not rows else "",
            best.tier.value,
            ("~" if low <= 1.0 <= high else "") + times(best.speedup) + "*" * (not best.retimed),
            interval(best.ci95) + f" {NOISY}" * best.noisy,
            times(task.over_stock[best.tier]),
            operator_words(best.operator),
            correct if not rows else "",
        )
        rows.append(_Row(cells=cells, colour=_GREEN if low > 1.0 else ""))
    nothing = "nothing correct" if judged else "nothing judged yet"
    nothing = "not judged" if task.undecided else nothing
    return rows or [_Row(cells=(title, "-", "-", "-", "-", nothing, correct))]


def _title(task: TaskReport) -> str:
    """Marks first: what is cut off at the end must not be them."""
    mark = "SIMULATED " if task.simulated else ""
    mark += "LEGACY " if task.variant is Variant.LEGACY else ""
    return mark + task.title


def _mean_lines(group: Group, room: int) -> list[str]:
    """One line a tier, aligned; without the intervals where they do not fit."""
    for bounds in (True, False):
        rows = [("Geometric mean", "clamped", "unclamped", "vs stock")]
        rows += [_mean_row(tier, s, bounds) for tier, s in group.tiers.items()]
        widths = [max(cell_width(row[i]) for row in rows) for i in range(4)]
        if sum(widths) + 6 <= room:
            break
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]


def _again(bias: SelectionBias) -> list[str]:
    """What timing the search's winners again came to."""
    if bias.median is None and not bias.lost:
        return []
    lost = f"; {bias.lost} failed and lost the place" if bias.lost else ""
    median = f"{bias.median:.3f}x" if bias.median is not None else "-"
    return [
        f"Timed again: {bias.winners} winners of the search; it had measured {median} what counts "
        f"(median){lost}."
    ]


def _mean_row(tier: Tier, summary: TierSummary, bounds: bool) -> tuple[str, str, str, str]:
    total, counted = summary.tasks, summary.tasks - len(summary.not_retimed)
    correct = counted - len(summary.without_correct)
    stock = summary.over_stock.tasks if summary.over_stock else 0
    of_all = f" of {counted}/{total}" if counted < total else ""
    return (
        f"  {tier.value}, {total} task{'s' * (total != 1)}",
        _mean(summary.clamped, bounds) + of_all,
        f"{_mean(summary.unclamped, bounds)} of {correct}/{total}",
        f"{_mean(summary.over_stock, bounds)} of {stock}/{total}",
    )


def _mean(mean: Mean | None, bounds: bool) -> str:
    if mean is None:
        return "-"
    spread = f" [{interval(mean.ci95)}]" if bounds and mean.ci95 else ""
    return times(mean.value) + spread


def _cost_line(report: Report) -> str:
    cost = report.cost
    held = f"{seconds(cost.gpu_s)} of GPU" if cost.gpu_s else f"{seconds(cost.lane_s)} of judging"
    again = f" and {cost.retimes} timings again" if cost.retimes else ""
    line = f"Spent: {cost.evaluations} evaluations{again}, {held}, {cost.queries} model queries, "
    line += f"{dollars(cost.cost_usd)}"
    if cost.queries_unpriced:
        line += f" ({cost.queries_unpriced} queries have no known price)"
    if cost.at_risk_usd:
        line += f", up to {dollars(cost.at_risk_usd)} more for queries without an answer"
    return f"{line}."


def _grid(rows: Sequence[_Row], room: int, color: bool) -> list[str]:
    head = _Row(cells=_HEADINGS, colour=_BOLD)
    widths = _widths([head, *rows], room)
    return [_line(row, widths, color) for row in (head, *rows)]


def _widths(rows: Sequence[_Row], room: int) -> list[int]:
    """Natural widths; then the widest flexible column gives way until the line fits."""
    widths = [max(cell_width(r.cells[i]) for r in rows) for i in range(len(rows[0].cells))]
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > room:
        giving = [i for i, least in _FLEXIBLE.items() if widths[i] > least]
        if not giving:
            break
        widths[max(giving, key=lambda i: widths[i])] -= 1
    return widths


def _line(row: _Row, widths: Sequence[int], color: bool) -> str:
    cells = []
    for i, (cell, cells_wide) in enumerate(zip(row.cells, widths, strict=True)):
        text = elide(cell, cells_wide)
        pad = " " * (cells_wide - cell_width(text))
        cells.append(pad + text if i in _RIGHT else text + pad)
    return _paint("  ".join(cells).rstrip(), row.colour, color)


def _paint(text: str, code: str, color: bool) -> str:
    return f"{code}{text}{_OFF}" if color and code and text else text


def _wrap(paragraphs: Sequence[str], room: int) -> list[str]:
    """Paragraphs broken at blanks, following lines indented by two."""
    lines: list[str] = []
    for paragraph in paragraphs:
        line = ""
        for word in paragraph.split():
            if line and cell_width(line) + 1 + cell_width(word) > room:
                lines.append(line)
                line = "  " + elide(word, room - 2)
            else:
                line = f"{line} {word}" if line else elide(word, room)
        lines.append(line)
    return lines
