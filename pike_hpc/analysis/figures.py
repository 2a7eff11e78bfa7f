"""Figures as SVG text, drawn from DataFrames.

Contract: the same table gives the same bytes; no global matplotlib state is left changed, no
display, window or pyplot is touched. matplotlib is imported when a figure is drawn, because
importing it writes configuration and font files. Task names are never read as formulas.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pike_hpc.analysis.text import elide, one_line
from pike_hpc.records import EvalStatus, Tier

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#24292f", "#8c959f", "#d8dee4"
"""Text, secondary marks, rules; a page may map these to its own colours."""

TIER_COLOURS: Mapping[str, str] = {"fp32": "#0a5fb4", "tf32": "#1b8a5a", "half": "#b35900"}
_TIER_MARKERS = {"fp32": "o", "tf32": "s", "half": "^"}

STATUS_COLOURS: Mapping[EvalStatus, str] = {
    EvalStatus.PASSED: "#2f8f63",
    EvalStatus.BUILD_ERROR: "#7d86c9",
    EvalStatus.REJECTED: "#a3a9b0",
    EvalStatus.RUNTIME_ERROR: "#c7503f",
    EvalStatus.WRONG_STRUCTURE: "#e3b04b",
    EvalStatus.WRONG_RESULT: "#d98032",
    EvalStatus.TIMEOUT: "#8a6bb8",
    EvalStatus.OUT_OF_MEMORY: "#5aa5b8",
    EvalStatus.WORKER_LOST: "#6b727a",
    EvalStatus.JUDGE_ERROR: "#c5c9ce",
}

_WIDTH_IN = 6.4
_ROW_IN = 0.26
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pike-hpc",
    "axes.unicode_minus": False,
}


def trajectory(steps: pd.DataFrame, totals: Mapping[str, int]) -> str:
    """Best so far against evaluations: a faint line per task, the geometric mean per tier.

    `steps` as from frames.trajectory (one group), `totals` task label to its evaluations. The
    mean is the clamped one: tasks without a correct candidate so far count as 1.0.
    """
    with _figure(3.3) as (figure, axes):
        longest = max([1, *totals.values()])
        paths = {
            (tier, task): _path(steps[(steps["tier"] == tier) & (steps["task"] == task)], longest)
            for tier in TIER_COLOURS
            for task in totals
        }
        for task in totals:
            xs, ys = range(longest + 1), paths[Tier.HALF.value, task]
            axes.step(xs, ys, where="post", color=FAINT, linewidth=0.8, alpha=0.7)
        for above, (tier, colour) in enumerate(TIER_COLOURS.items()):
            mean = [
                math.exp(sum(math.log(max(1.0, y)) for y in ys) / len(ys))
                for ys in zip(*(paths[tier, task] for task in totals), strict=True)
            ]
            axes.step(
                range(len(mean)),
                mean,
                where="post",
                color=colour,
                linewidth=2,
                label=f"mean, {tier}",
                zorder=5 - above,
            )
        axes.axhline(1.0, color=INK, linewidth=0.8)
        axes.set_xlabel("evaluations per task")
        axes.set_ylabel("best so far, times eager")
        _log_speedups(axes.yaxis, [y for path in paths.values() for y in path])
        axes.set_xlim(0, longest)
        axes.locator_params(axis="x", integer=True)
        _legend_above(axes, figure)
        return _svg(figure)


def speedups(summary: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Each task's best per tier with its 95 % interval, and the best stock setting beside it.

    `summary` as from frames.summary (one group), `titles` task label to what its row is called.
    """
    with _figure(0.9 + _ROW_IN * max(3, len(titles))) as (figure, axes):
        rows = {label: len(titles) - 1 - i for i, label in enumerate(titles)}
        for offset, (tier, colour) in zip((0.2, 0.0, -0.2), TIER_COLOURS.items(), strict=True):
            # A stricter candidate is drawn once, at the tier it measured.
            own = summary[(summary["tier"] == tier) & (summary["measured_tier"] == tier)]
            if own.empty:
                continue
            ys = own["task"].map(rows).to_numpy(dtype=float) + offset
            best, stock = own["speedup"].to_numpy(float), own["stock_speedup"].to_numpy(float)
            low, high = own["ci_low"].to_numpy(float), own["ci_high"].to_numpy(float)
            axes.hlines(ys, low, high, colors=colour, linewidth=1.6)
            axes.plot(best, ys, _TIER_MARKERS[tier], color=colour, markersize=5, label=tier)
            axes.plot(stock, ys, "D", mfc="none", color=FAINT, markersize=4, zorder=1)
        if (summary["stock_speedup"] > 0).any():
            axes.plot([], [], "D", mfc="none", color=FAINT, ms=4, label="best stock of that tier")
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.set_yticks(list(rows.values()), [_short(title) for title in titles.values()])
        axes.set_ylim(-0.6, max(len(titles), 1) - 0.4)
        axes.set_xlabel("times eager (1 = as fast as the reference)")
        _log_speedups(
            axes.xaxis, [*summary["ci_low"], *summary["ci_high"], *summary["stock_speedup"]]
        )
        _legend_above(axes, figure)
        return _svg(figure)


def statuses(counts: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Stacked bars: how the verdicts of each task ended.

    `counts` as from frames.statuses (one group), `titles` task label to what its row is called.
    """
    with _figure(0.9 + _ROW_IN * max(3, len(counts))) as (figure, axes):
        ys = list(range(len(counts) - 1, -1, -1))
        left = [0] * len(counts)
        for status, colour in STATUS_COLOURS.items():
            values = [int(n) for n in counts[status.value]]
            if any(values):
                label = status.value.replace("_", " ").lower()
                axes.barh(ys, values, left=left, height=0.66, color=colour, label=label)
                left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(ys, [_short(titles[str(task)]) for task in counts["task"]])
        axes.set_ylim(-0.6, max(len(counts), 1) - 0.4)
        axes.set_xlim(0, max([1, *left]) * 1.02)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("verdicts")
        _legend_above(axes, figure)
        return _svg(figure)


@contextmanager
def _figure(height_in: float) -> Iterator[tuple[Figure, Axes]]:
    from matplotlib import style  # noqa: PLC0415 - importing matplotlib writes files
    from matplotlib.figure import Figure  # noqa: PLC0415

    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        yield figure, axes


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=nothing)
    return out.getvalue()


def _path(steps: pd.DataFrame, longest: int) -> list[float]:
    """Best so far after 0, 1, … evaluations; 1.0 while there is none."""
    improved = dict(zip(steps["evaluation"], steps["speedup"], strict=True))
    path = [1.0]
    for number in range(1, longest + 1):
        path.append(float(improved.get(number, path[-1])))
    return path


def _log_speedups(axis: Any, values: list[float]) -> None:
    """A logarithmic axis around the values and 1.0, with ticks a person would write."""
    from matplotlib import ticker  # noqa: PLC0415

    drawn = [v for v in values if v > 0]
    low, high = min([0.9, *drawn]) / 1.04, max([1.3, *drawn]) * 1.06
    vertical = axis.axis_name == "y"
    (axis.axes.set_yscale if vertical else axis.axes.set_xscale)("log")
    (axis.axes.set_ylim if vertical else axis.axes.set_xlim)(low, high)
    decades = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    few = high / low < 6
    steps = ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5]) if few else ticker.LogLocator(subs=decades)
    axis.set_major_locator(steps)
    axis.set_major_formatter(ticker.FormatStrFormatter("%gx"))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())


def _legend_above(axes: Axes, figure: Figure) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=4, fontsize=8)


def _short(title: str) -> str:
    return elide(one_line(title), 24)
