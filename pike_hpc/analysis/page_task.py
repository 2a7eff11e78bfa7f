"""The section of one task on the page: winners as diffs, proposals, refusals, provenance.

Sources, notes, logs and messages are hostile text; they enter through markup only. Long ones
are cut here, and the page says so: the archive has them whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from pike_hpc.analysis.markup import Html, join, tag
from pike_hpc.analysis.metrics import Best, judged_again, standing
from pike_hpc.analysis.page_parts import facts, folded, gain, grid, marks, row, unconfirmed
from pike_hpc.analysis.report import TaskReport
from pike_hpc.analysis.text import (
    dollars,
    elide,
    interval,
    log_text,
    milliseconds,
    one_line,
    operator_words,
    seconds,
    status_words,
    times,
)
from pike_hpc.archive import StampedResult
from pike_hpc.records import EvalStatus, Proposal

MAX_DIFF_CHARACTERS = 200_000
"""A longer program is not compared line by line: the page stays readable and quick to make."""

MAX_DIFF_LINES = 1500
MAX_LINE = 400
MAX_PROPOSALS = 500
MAX_LOG = 4000

_KINDS = {"+": "add", "-": "del", "@": "hunk"}


def task_section(task: TaskReport) -> Html:
    """One folded section, its title the result in short."""
    fastest = task.winners[-1] if task.winners else None
    result = join(gain(fastest), f" {fastest.tier.value}") if fastest else "nothing correct yet"
    title = join(f"{one_line(task.title)} ", marks(task), " ")
    title = join(title, result, " ", tag("span", f"on {one_line(task.device)}", class_="soft"))
    parts = [_facts(task), *_winners(task), _baselines(task), _proposals(task)]
    return folded(title, join(*parts, _declined(task), _failures(task), _provenance(task)))


def _facts(task: TaskReport) -> Html:
    cost = task.cost
    tokens = f"{cost.input_tokens:,} in, {cost.output_tokens:,} out" if cost.input_tokens else ""
    risk = f", up to {dollars(cost.at_risk_usd)} unsettled" if cost.at_risk_usd else ""
    return facts(
        [
            ("Task", one_line(task.label)),
            ("State", one_line(task.history.state)),
            ("Evaluations", f"{cost.evaluations}: {status_words(task.status_counts)}"),
            ("Judging", seconds(cost.lane_s) + (" of GPU" if cost.gpu_s else "")),
            ("Queries", str(cost.queries) if cost.queries else ""),
            ("Tokens", tokens),
            ("Money", dollars(cost.cost_usd) + risk if cost.queries else ""),
        ]
    )


def _winners(task: TaskReport) -> Iterator[Html]:
    for best in task.winners:
        won = f" {operator_words(best.operator)}"
        yield tag("h3", f"Fastest at {best.tier.value}: ", gain(best), unconfirmed(best), won)
        yield facts(
            [
                ("95 % interval", interval(best.ci95)),
                ("In the search", times(best.search_speedup) if best.retimed else ""),
                ("Latency", _latencies(best)),
                ("Over best stock setting", times(task.over_stock[best.tier])),
                ("Tags", one_line(", ".join(best.tags))),
                ("Candidate", best.candidate[:16]),
            ]
        )
        yield folded("What changed, from the reference to this program", _diff(task, best))


def _latencies(best: Best) -> str:
    return f"{milliseconds(best.reference_ms)} eager, {milliseconds(best.candidate_ms)} now"


def _diff(task: TaskReport, best: Best) -> Html:
    if not best.source:
        return tag("p", "The archive holds no source for this candidate.", class_="soft")
    if len(best.source) > MAX_DIFF_CHARACTERS:
        return tag("p", f"{len(best.source):,} characters: too long to compare.", class_="soft")
    before, after = task.history.task.source.splitlines(), best.source.splitlines()
    lines = list(difflib.unified_diff(before, after, "reference", "candidate", lineterm="", n=3))
    if not lines:
        return tag("p", "The same text as the reference.", class_="soft")
    head, rest = lines[:2], lines[2:MAX_DIFF_LINES]
    shown = [tag("span", line, class_="hunk") for line in head] + [_diff_line(x) for x in rest]
    left = len(lines) - len(shown)
    more = tag("p", f"{left} more lines are in the archive.", class_="soft") if left > 0 else ""
    return join(tag("pre", *shown), more)


def _diff_line(line: str) -> Html:
    return tag("span", elide(line, MAX_LINE) or " ", class_=_KINDS.get(line[:1]))


def _baselines(task: TaskReport) -> Html:
    if not task.baselines:
        return Html()
    headings = [("Stock setting", ""), ("Tier", ""), ("vs eager", "number"), ("95 %", "number")]
    rows = (
        row(
            [
                (one_line(name.replace("_", " ")), "words"),
                (best.tier.value, ""),
                (join(gain(best), unconfirmed(best)), "number"),
                (interval(best.ci95), "number"),
            ]
        )
        for name, best in task.baselines.items()
    )
    return join(tag("h3", "Stock settings, judged the same way"), grid(headings, rows))


def _proposals(task: TaskReport) -> Html:
    proposals = task.history.proposals
    if not proposals:
        return Html()
    verdicts, again = standing(task.history), judged_again(task.history)
    headings = [("#", "number"), ("Proposed by", ""), ("Verdict", ""), ("Tier", "")]
    headings += [("in the search", "number"), ("timed again", "number"), ("What was said", "")]
    rows = (
        _proposal(i, p, verdicts.get(p.candidate_id), again.get(p.candidate_id))
        for i, p in enumerate(proposals[:MAX_PROPOSALS], start=1)
    )
    cut = f" (first {MAX_PROPOSALS})" if len(proposals) > MAX_PROPOSALS else ""
    return folded(f"{len(proposals)} proposals{cut}", grid(headings, rows))


def _proposal(
    number: int, proposal: Proposal, verdict: StampedResult | None, again: StampedResult | None
) -> Html:
    result = verdict.result if verdict else None
    said = [proposal.note, result.message if result else ""]
    words = operator_words(proposal.operator)
    if proposal.round:
        words += f", round {proposal.round}"
    return row(
        [
            (str(number), "number"),
            (words, "words"),
            (result.status.value if result else "not judged", ""),
            (result.tier.value if result and result.tier else "-", ""),
            (times(result.timing.speedup if result and result.timing else None), "number"),
            (_again(again), "number"),
            (one_line(" - ".join(s for s in said if s)), "words"),
        ]
    )


def _again(verdict: StampedResult | None) -> str:
    """What judging it again gave: a speedup, or why it lost its place."""
    if verdict is None:
        return ""
    timing = verdict.result.timing
    return times(timing.speedup) if timing else verdict.result.status.value


def _declined(task: TaskReport) -> Html:
    declined = task.history.declined
    if not declined:
        return Html()
    rows = (
        row([(operator_words(d.operator), "words"), (one_line(d.reason), "words")])
        for d in declined[:MAX_PROPOSALS]
    )
    title = f"{len(declined)} declined before a candidate was made"
    return folded(title, grid([("Operator", ""), ("Reason", "")], rows))


def _failures(task: TaskReport) -> Html:
    """The newest log of each kind of failure: enough to see what goes wrong."""
    latest: dict[EvalStatus, StampedResult] = {}
    for verdict in task.history.verdicts:
        if verdict.result.status is not EvalStatus.PASSED and verdict.result.log_tail.strip():
            latest[verdict.result.status] = verdict
    if not latest:
        return Html()
    parts = (
        join(
            tag("h3", f"{status.value}: {one_line(verdict.result.message)}"),
            tag("pre", log_text(verdict.result.log_tail[-MAX_LOG:]), class_="plain"),
        )
        for status, verdict in latest.items()
    )
    return folded("What failing programs printed (untrusted)", join(*parts))


def _provenance(task: TaskReport) -> Html:
    results = [v.result for v in task.history.verdicts]
    kinds = {
        "Device": [r.environment.device for r in results],
        "torch": [r.environment.torch for r in results],
        "Python": [r.environment.python for r in results],
        "Driver": [r.environment.driver for r in results],
        "CPU threads": [str(r.environment.cpu_threads or "") for r in results],
        "Host": [r.environment.host for r in results],
        "Isolation": [f"{r.isolation.level} ({r.isolation.engine})" for r in results],
        "Reference": [r.correctness.reference_precision for r in results if r.correctness],
        "Image": [r.key.image_digest for r in results],
        "Judge version": [r.key.judge_version for r in results],
        "Task digest": [task.history.task.digest],
        "Variant": [task.variant.value],
        "Runs": list(task.history.run_ids),
    }
    pairs = ((name, _several(values)) for name, values in kinds.items())
    return folded("Where and how it was judged", join(facts(pairs), _probes(task)))


def _several(values: list[str]) -> str:
    return one_line(", ".join(sorted({v for v in values if v})), 600)


def _probes(task: TaskReport) -> Html:
    tried: dict[str, bool] = {}
    for verdict in task.history.verdicts:
        for attack, stopped in verdict.result.isolation.probes.items():
            tried[attack] = stopped and tried.get(attack, True)
    if not tried:
        return Html()
    words = (
        f"{a.replace('_', ' ')}: {'stopped' if ok else 'NOT stopped'}" for a, ok in tried.items()
    )
    return facts([("Attacks tried", one_line("; ".join(words), 2000))])
