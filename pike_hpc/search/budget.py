"""Budget: what a task may still spend, exactly.

Contract: pure functions of a view and its limits. Queries in flight, lost or unanswered count,
as do evaluations in flight; whoever asks here before each step and reserves what it asked for
never ends above a limit. Knows nothing of prices: the caller brings the ceiling of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.records import JUDGE_VERSION, EvalStatus, UsageError
from pike_hpc.search.view import TaskView

_UNJUDGED, _BY_ONE_HOST = 8, 12
"""So many programs that nobody could judge, and none that somebody could, end a task: more where
all were tried on one host, whose disk or GPU may be what is wrong."""

_WITHOUT_REFERENCE = (EvalStatus.REJECTED, EvalStatus.BUILD_ERROR, EvalStatus.WORKER_LOST)
"""Verdicts that need none, so that they say nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one task may use. 0 means no limit."""

    queries: int = 0
    evaluations: int = 0
    max_usd: float = 0.0
    max_gpu_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("queries", "evaluations", "max_usd", "max_gpu_s"):
            value = getattr(self, name)
            if not value >= 0:
                raise UsageError(
                    f"a budget of {value} makes no sense",
                    where=f"budget: {name}",
                    valid="0 (no limit) or more",
                )


def why_no_query(view: TaskView, limits: Limits, reserved_usd: float = 0.0) -> str | None:
    """Why one more query of at most `reserved_usd` dollars may not be sent; None: it may."""
    if limits.queries and view.charged_queries >= limits.queries:
        return f"All {limits.queries} model queries are used (budget.queries_per_task)."
    if not limits.max_usd:
        return None
    spent = view.spent
    usd = spent.usd + spent.reserved_usd
    if usd >= limits.max_usd or usd + reserved_usd > limits.max_usd:
        return (
            f"${usd:.2f} of ${limits.max_usd:.2f} are spent or reserved and the next query may "
            f"cost ${reserved_usd:.2f} (budget.max_usd)."
        )
    return None


def why_no_evaluation(view: TaskView, limits: Limits) -> str | None:
    """Why one more evaluation may not be requested; None: it may."""
    if limits.evaluations and len(view.requested) >= limits.evaluations:
        return f"All {limits.evaluations} evaluations are used (budget.evaluations_per_task)."
    return why_no_device_time(view, limits)


def why_no_device_time(view: TaskView, limits: Limits) -> str | None:
    """Why the device time is used up; None: some is left. What is in flight then may exceed it."""
    if limits.max_gpu_s and view.lane_s >= limits.max_gpu_s:
        return (
            f"{view.lane_s:.0f} s of {limits.max_gpu_s:.0f} s of device time are used "
            f"(budget.max_gpu_hours)."
        )
    return None


def why_unjudgeable(view: TaskView) -> str | None:
    """Why nothing more is worth spending on a task whose reference nobody could run here.

    Where it does not fit the device, or fails there, no program has a verdict, and models would be
    asked for nothing. Programs that were judged but for their precision or a noisy lane don't
    count, nor do those that never came to be held against the reference.
    """
    held = [c for c, v in view.verdicts.items() if v.status not in _WITHOUT_REFERENCE]
    if any(view.verdicts[c].status is not EvalStatus.JUDGE_ERROR for c in held):
        return None
    results = [view.results[c] for c in held] if len(held) >= _UNJUDGED else []
    failed = [r for r in results if r.correctness is None and r.key.judge_version == JUDGE_VERSION]
    hosts = {result.environment.host for result in failed}
    if len(failed) < (_UNJUDGED if len(hosts) > 1 else _BY_ONE_HOST):
        return None
    return f"Of {len(failed)} programs none could be judged, the last because: {failed[-1].message}"


def may_evaluate(view: TaskView, limits: Limits) -> bool:
    """Whether one more evaluation fits; see `why_no_evaluation`."""
    return why_no_evaluation(view, limits) is None
