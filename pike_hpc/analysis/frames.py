"""The report's records as tables: one row per candidate, evaluation, query, step or verdict count.

The only place where records become DataFrames; figures and CSV files start from these. Knows
no archive and no style. Every function names its columns, so that an empty table has them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pike_hpc.analysis.metrics import judged_again, standing
from pike_hpc.analysis.report import Report, TaskReport
from pike_hpc.archive import QueryRecord, StampedResult
from pike_hpc.records import EvalResult, EvalStatus, Proposal, Tier

_TASK = ("task", "name", "variant", "device", "simulated")
_NUMBERS = frozenset(
    {
        "speedup",
        "ci_low",
        "ci_high",
        "over_stock",
        "search_speedup",
        "retimed_speedup",
        "stock_speedup",
        "candidate_ms",
        "reference_ms",
        "relative_error",
        "error_limit",
        "lane_s",
        "elapsed_s",
        "latency_s",
        "reserved_usd",
        "cost_usd",
    }
)
_VERDICT = (
    "status",
    "tier",
    "speedup",
    "ci_low",
    "ci_high",
    "candidate_ms",
    "reference_ms",
    "relative_error",
    "error_limit",
    "lane_s",
    "isolation",
    "tags",
    "message",
)


def all_frames(report: Report) -> Mapping[str, pd.DataFrame]:
    """Every table under the name of its CSV file."""
    return {
        "summary": summary(report.tasks),
        "candidates": candidates(report),
        "evaluations": evaluations(report),
        "elites": elites(report),
        "queries": queries(report),
        "declined": declined(report),
        "trajectory": trajectory(report.tasks),
        "statuses": statuses(report.tasks),
    }


def summary(tasks: Sequence[TaskReport]) -> pd.DataFrame:
    """One row per task and tier with a correct candidate."""
    best_columns = ("speedup", "ci_low", "ci_high", "measured_tier", "over_stock")
    program = ("stock_speedup", "operator", "candidate", "candidate_ms", "reference_ms")
    again = ("retimed", "search_speedup")
    rows = [
        (
            *_task(task),
            tier.value,
            best.speedup,
            *best.ci95,
            best.tier.value,
            task.over_stock[tier],
            task.stock[tier],
            best.operator,
            best.candidate,
            best.candidate_ms,
            best.reference_ms,
            best.retimed,
            best.search_speedup,
        )
        for task in tasks
        for tier, best in task.best.items()
        if best is not None
    ]
    return _frame(rows, (*_TASK, "tier", *best_columns, *program, *again))


def elites(report: Report) -> pd.DataFrame:
    """One row per verdict on a candidate judged again, the search's speedup beside it."""
    columns = (*_TASK, "candidate", "retime", "search_tier", "search_speedup")
    rows = []
    for task in report.tasks:
        searched = standing(task.history)
        for verdict in task.history.retimes:
            name = verdict.result.candidate_id
            first = searched[name].result if name in searched else None
            rows.append(
                (
                    *_task(task),
                    name,
                    verdict.result.key.retime,
                    first.tier.value if first and first.tier else None,
                    first.timing.speedup if first and first.timing else None,
                    *_verdict(verdict),
                )
            )
    return _frame(rows, (*columns, *_VERDICT))


def candidates(report: Report) -> pd.DataFrame:
    """One row per proposal with the search's verdict on its candidate, and the one again."""
    columns = (*_TASK, "candidate", "operator", "parents", "branch", "phase", "round", "note")
    rows = []
    for task in report.tasks:
        verdicts, again = standing(task.history), judged_again(task.history)
        for proposal in task.history.proposals:
            verdict = verdicts.get(proposal.candidate_id)
            second = again.get(proposal.candidate_id)
            rows.append(
                (
                    *_task(task),
                    *_proposal(proposal),
                    *_verdict(verdict),
                    second.result.status.value if second else None,
                    second.result.timing.speedup if second and second.result.timing else None,
                )
            )
    return _frame(rows, (*columns, *_VERDICT, "retimed_status", "retimed_speedup"))


def evaluations(report: Report) -> pd.DataFrame:
    """One row per verdict of the search, in the order in which verdicts became final."""
    columns = (*_TASK, "evaluation", "time", "candidate", "image", "judge", *_VERDICT)
    rows = [
        (
            *_task(task),
            number,
            pd.Timestamp(verdict.time, unit="s", tz="UTC"),
            verdict.result.candidate_id,
            verdict.result.key.image_digest,
            verdict.result.key.judge_version,
            *_verdict(verdict),
        )
        for task in report.tasks
        for number, verdict in enumerate(task.history.verdicts, start=1)
    ]
    return _frame(rows, columns)


def queries(report: Report) -> pd.DataFrame:
    """One row per model query."""
    sent = ("query", "time", "role", "model", "outcome", "charged", "latency_s", "reserved_usd")
    paid = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd", "priced")
    rows = [
        (*_task(task), *_query(query)) for task in report.tasks for query in task.history.queries
    ]
    return _frame(rows, (*_TASK, *sent, *paid))


def declined(report: Report) -> pd.DataFrame:
    """One row per decision that gave no candidate."""
    rows = [
        (*_task(task), d.operator, d.reason) for task in report.tasks for d in task.history.declined
    ]
    return _frame(rows, (*_TASK, "operator", "reason"))


def trajectory(tasks: Sequence[TaskReport]) -> pd.DataFrame:
    """One row per evaluation that improved a task's best of a tier."""
    columns = (*_TASK, "tier", "evaluation", "elapsed_s", "speedup", "candidate")
    rows = [
        (*_task(task), tier.value, s.evaluation, s.elapsed_s, s.speedup, s.candidate)
        for task in tasks
        for tier in Tier
        for s in task.trajectory[tier]
    ]
    return _frame(rows, columns)


def statuses(tasks: Sequence[TaskReport]) -> pd.DataFrame:
    """One row per task, one column per status, counts of verdicts."""
    rows = [
        (*_task(task), *(task.status_counts.get(status, 0) for status in EvalStatus))
        for task in tasks
    ]
    return _frame(rows, (*_TASK, *(status.value for status in EvalStatus)))


def _task(task: TaskReport) -> tuple[Any, ...]:
    return (task.label, task.name, task.variant.value, task.device, task.simulated)


def _proposal(proposal: Proposal) -> tuple[Any, ...]:
    return (
        proposal.candidate_id,
        proposal.operator,
        " ".join(proposal.parent_ids),
        proposal.branch,
        proposal.phase,
        proposal.round,
        proposal.note,
    )


def _query(query: QueryRecord) -> tuple[Any, ...]:
    usage = query.usage
    return (
        query.query_id,
        pd.Timestamp(query.time, unit="s", tz="UTC"),
        query.role,
        query.model,
        query.outcome.value,
        query.charged,
        query.latency_s,
        query.max_cost_usd,
        usage.input_tokens if usage else None,
        usage.cached_tokens if usage else None,
        usage.output_tokens if usage else None,
        usage.cost_usd if usage else None,
        usage.priced if usage else None,
    )


def _verdict(verdict: StampedResult | None) -> tuple[Any, ...]:
    if verdict is None:
        return (None,) * len(_VERDICT)
    result: EvalResult = verdict.result
    timing, correctness = result.timing, result.correctness
    return (
        result.status.value,
        result.tier.value if result.tier else None,
        timing.speedup if timing else None,
        *(timing.ci95 if timing else (None, None)),
        timing.candidate_ms if timing else None,
        timing.reference_ms if timing else None,
        correctness.relative_error if correctness else None,
        correctness.limit if correctness else None,
        result.lane_s,
        result.isolation.level,
        " ".join(result.tags),
        result.message,
    )


def _frame(rows: list[tuple[Any, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows, columns=list(columns))
    # A column without a single value would otherwise hold None and compare with nothing.
    return frame.astype({name: float for name in columns if name in _NUMBERS})
