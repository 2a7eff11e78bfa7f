"""The report as one self-contained page: no script, no remote load, no file beside it.

Contract: `page` is pure; whatever candidates, logs, models and task files contain, the page
shows it as text. The Content-Security-Policy in assets/report.html would stop it otherwise.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from importlib import resources

from pike_hpc.analysis import figures
from pike_hpc.analysis.group_figures import group_figures
from pike_hpc.analysis.markup import Html, join, tag, trusted_svg
from pike_hpc.analysis.metrics import NOISY
from pike_hpc.analysis.page_parts import facts, folded, gain, grid, marks, row, unconfirmed
from pike_hpc.analysis.page_task import task_section
from pike_hpc.analysis.report import Group, Report, TaskReport
from pike_hpc.analysis.summary import Mean, SelectionBias, TierSummary
from pike_hpc.analysis.text import (
    dollars,
    interval,
    log_text,
    one_line,
    operator_words,
    seconds,
    status_words,
    times,
)
from pike_hpc.records import Tier

_SUMMARY = (
    ("Task", "name"),
    ("Tier", ""),
    ("vs eager", "number"),
    ("95 % interval", "number"),
    ("vs stock", "number"),
    ("What won", "words"),
    ("Judged", "number"),
    ("Verdicts", "words"),
)

_CAPTIONS = {
    "trajectory": (
        "Best so far over evaluations",
        "Faint: each task's best at any tier. Strong: geometric mean per tier, clamped.",
    ),
    "speedups": (
        "Speedups with their 95 % intervals",
        "Each task's best at the tier it measured; diamonds are the best stock setting.",
    ),
    "statuses": (
        "How verdicts ended",
        "Every verdict counts here, also those that decided nothing.",
    ),
}

_DEFINITIONS = (
    "vs eager: request latency of the reference under torch's shipped flags over the candidate's.",
    "vs stock: over the best of torch's own settings at the same tier (compile modes, "
    "channels_last, half; alone or together), "
    'judged the same way; "-" where none was judged.',
    "Tier: precision by measured error, strictest first: fp32, tf32, half. A stricter candidate "
    "counts in the looser columns too.",
    "~ before a speedup: its 95 % interval holds 1.00, so no difference is proven.",
    "Clamped mean: all tasks; a slow-down or a task without a correct candidate counts as 1.00. "
    "Unclamped mean: tasks with a correct candidate, as measured.",
    "The best of many noisy measurements looks too fast. So the best of each search are judged "
    "again, on fresh seeds and in fresh processes, and only that value is shown; one that is "
    '"not timed again" is the search\'s own, and is in no mean.',
)


def page(report: Report) -> str:
    """The whole page."""
    names = ", ".join(run.run_id for run in report.runs)
    body = join(
        _head(report, names),
        *(part for i, group in enumerate(report.groups) for part in _group(group, i)),
        _tasks(report),
        _cost(report),
        _runs(report),
        tag("h2", "How to read the numbers"),
        tag("ul", *(tag("li", text) for text in _DEFINITIONS), class_="notes"),
    )
    folder = resources.files("pike_hpc.analysis") / "assets"
    template = string.Template((folder / "report.html").read_text("utf-8"))
    style = (folder / "style.css").read_text("utf-8") + _figure_colours()
    return template.substitute(
        title=tag("span", f"pike-hpc: {one_line(names, 80)}")[6:-7], style=style, body=body
    )


def _head(report: Report, names: str) -> Html:
    parts = [tag("h1", "pike-hpc report"), tag("p", one_line(names), class_="soft")]
    parts += [tag("p", one_line(note), class_="loud") for note in report.notes]
    headline = report.headline
    if headline is None:
        parts.append(tag("p", "No task here may stand in a headline; see the marks below."))
    else:
        tiers = [t for t in Tier if headline.tiers[t].clamped]
        parts.append(tag("dl", *(_tile(t, headline.tiers[t]) for t in tiers), class_="tiles"))
        words = f"Geometric means on {one_line(headline.device)}, [95 % interval over tasks]."
        parts.append(tag("p", words, class_="soft"))
    return tag("header", *parts)


def _tile(tier: Tier, summary: TierSummary) -> Html:
    counted = summary.tasks - len(summary.not_retimed)
    correct = counted - len(summary.without_correct)
    many = f"all {summary.tasks} tasks" if summary.tasks > 1 else "1 task"
    many = many if counted == summary.tasks else f"{counted} of {summary.tasks} tasks"
    return tag(
        "div",
        tag("dt", f"{tier.value}, {many}, clamped"),
        tag("dd", times(summary.clamped.value if summary.clamped else None)),
        tag("dd", _spread(summary.clamped)),
        tag("dd", f"unclamped {_mean(summary.unclamped)} over {correct} correct"),
        tag("dd", f"over best stock setting {_mean(summary.over_stock)}"),
        class_="tile",
    )


def _mean(mean: Mean | None) -> str:
    return f"{times(mean.value)} {_spread(mean)}".rstrip() if mean else "-"


def _spread(mean: Mean | None) -> str:
    return f"[{interval(mean.ci95)}]" if mean and mean.ci95 else ""


def _group(group: Group, number: int) -> Iterator[Html]:
    yield tag("h2", f"Results on {one_line(group.device)}", marks(group))
    yield tag("p", one_line(", ".join(group.suites)), class_="soft")
    yield grid(_SUMMARY, (r for task in group.tasks for r in _summary_rows(task)))
    yield from _failed(group)
    yield _again(group.selection)
    yield _figures(group, f"g{number}")


def _summary_rows(task: TaskReport) -> Iterator[Html]:
    """One row per tier whose best is faster than that of the stricter tiers."""
    winners = task.winners
    title = join(one_line(task.title), marks(task))
    counts = str(task.cost.evaluations), status_words(task.status_counts)
    if not winners:
        cells = [(title, "name"), ("-", ""), ("-", "number"), ("-", "number"), ("-", "number")]
        rest = [
            ("not judged" if task.undecided else "nothing correct yet", "words"),
            (counts[0], "number"),
            (counts[1], "words"),
        ]
        yield row([*cells, *rest])
    for i, best in enumerate(winners):
        yield row(
            [
                (title if i == 0 else "", "name"),
                (best.tier.value, ""),
                (join(gain(best), unconfirmed(best)), "number"),
                (interval(best.ci95) + f" {NOISY}" * best.noisy, "number"),
                (times(task.over_stock[best.tier]), "number"),
                (operator_words(best.operator), "words"),
                (counts[0] if i == 0 else "", "number"),
                (counts[1] if i == 0 else "", "words"),
            ],
            class_="more" if i < len(winners) - 1 else None,
        )


def _failed(group: Group) -> Iterator[Html]:
    """Sentences that name the tasks without a correct candidate, tiers with the same ones once."""
    tiers: dict[tuple[str, ...], list[str]] = {}
    for tier, summary in group.tiers.items():
        tiers.setdefault(summary.without_correct, []).append(tier.value)
    for tasks, names in tiers.items():
        if tasks:
            words = f"Without a correct candidate at {', '.join(names)}: {', '.join(tasks)}."
            yield tag("p", one_line(words, 2000), class_="soft")


def _again(bias: SelectionBias) -> Html:
    """One sentence on what timing the search's winners again came to."""
    if bias.median is None and not bias.lost:
        return Html()
    lost = f" {bias.lost} did not pass again and lost the place." if bias.lost else ""
    ratio = (
        f"the search had measured {bias.median:.3f} times what counts (median of {bias.winners})."
        if bias.median is not None
        else "none passed again."
    )
    return tag("p", f"Winners of the search, judged again: {ratio}{lost}", class_="soft")


def _figures(group: Group, prefix: str) -> Html:
    svgs = group_figures(group)
    return tag(
        "div",
        *(
            tag(
                "figure",
                trusted_svg(svgs[name], f"{prefix}-{name}", title),
                tag("figcaption", f"{title}. {text}"),
            )
            for name, (title, text) in _CAPTIONS.items()
            if name in svgs
        ),
        class_="figures",
    )


def _tasks(report: Report) -> Html:
    if not report.tasks:
        return tag("p", "No task has been opened in these archives yet.")
    return join(tag("h2", "Task by task"), *(task_section(task) for task in report.tasks))


def _cost(report: Report) -> Html:
    cost = report.cost
    lost = f", {cost.queries_lost} lost" if cost.queries_lost else ""
    lost += f", {cost.queries_failed} failed" if cost.queries_failed else ""
    money = dollars(cost.cost_usd)
    money += f", up to {dollars(cost.at_risk_usd)} unsettled" if cost.at_risk_usd else ""
    money += f"; {cost.queries_unpriced} queries unpriced" if cost.queries_unpriced else ""
    cached = f" ({cost.cached_tokens:,} of them cached)" if cost.cached_tokens else ""
    pairs = [
        ("Evaluations", f"{cost.evaluations:,}"),
        ("Timed again", f"{cost.retimes:,}" if cost.retimes else ""),
        ("Judging", seconds(cost.lane_s)),
        ("GPU", seconds(cost.gpu_s) if cost.gpu_s else "none used"),
        ("Model queries", f"{cost.queries:,}{lost}"),
        ("Input tokens", f"{cost.input_tokens:,}{cached}" if cost.input_tokens else ""),
        ("Output tokens", f"{cost.output_tokens:,}" if cost.output_tokens else ""),
        ("Money", money),
    ]
    return join(tag("h2", "What it cost"), facts(pairs))


def _runs(report: Report) -> Html:
    sections = []
    for run in report.runs:
        pairs = [
            ("Began", one_line(run.created)),
            ("Tasks", str(run.tasks)),
            ("Evaluations", str(run.evaluations)),
            ("State", one_line(", ".join(run.states))),
            ("Archive", one_line(run.path)),
        ]
        config = tag("pre", log_text(run.config_text), class_="plain") if run.config_text else ""
        sign = tag("span", "SIMULATED", class_="mark") if run.simulated else ""
        sections.append(folded(join(one_line(run.run_id), sign), join(facts(pairs), config)))
    return join(tag("h2", "Runs"), *sections)


def _figure_colours() -> str:
    """Rules that let figures follow the reader's light or dark preference."""
    names = {figures.INK: "--ink", figures.FAINT: "--faint", figures.GRID: "--rule"}
    names |= {colour: f"--{tier}" for tier, colour in figures.TIER_COLOURS.items()}
    rules = []
    for colour, name in names.items():
        rules.append(f'figure svg [style*="fill: {colour}"] {{ fill: var({name}) !important; }}')
        rules.append(
            f'figure svg [style*="stroke: {colour}"] {{ stroke: var({name}) !important; }}'
        )
    return "\n".join(rules)
