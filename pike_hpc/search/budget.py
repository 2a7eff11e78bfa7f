"""Budget: what a task may still spend, exactly.

Contract: pure functions of a view and its limits. Queries in flight, lost or unanswered count,
as do evaluations in flight; whoever asks here before each step and reserves what it asked for
never ends above a limit. Knows nothing of prices: the caller brings the ceiling of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.records import EvalStatus, UsageError
from pike_hpc.search.view import TaskView

_UNJUDGED = 8
"""Programs without a verdict, and none with one, after which a task is given up: a worker rests
between failures of its own, so that other workers have had a turn by then."""


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
    """Why nothing more is worth spending on a task of which no program was ever judged.

    A lane that fails is another one's turn next; a task that does not fit the device, or whose
    reference fails there, has no verdict on any program, and models would be asked for nothing.
    """
    verdicts = view.verdicts.values()
    if len(verdicts) < _UNJUDGED:
        return None
    if any(verdict.status is not EvalStatus.JUDGE_ERROR for verdict in verdicts):
        return None
    said = view.results[next(reversed(view.verdicts))].message
    return f"Of {len(verdicts)} programs none could be judged, the last because: {said}"


def may_evaluate(view: TaskView, limits: Limits) -> bool:
    """Whether one more evaluation fits; see `why_no_evaluation`."""
    return why_no_evaluation(view, limits) is None
