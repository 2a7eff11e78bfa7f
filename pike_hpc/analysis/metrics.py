"""The figures of one task, from its history alone. Pure: no archive, no pandas, no clock.

Definitions are in docs/report.md. A candidate that was judged more than once counts with its
latest verdict. Stricter tiers count in looser columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pike_hpc.analysis.history import TaskHistory
from pike_hpc.archive import QueryOutcome, QueryRecord, StampedResult
from pike_hpc.proposers.rules import RULES
from pike_hpc.records import EvalResult, EvalStatus, Tier, Timing

RULE = "rule:"
"""Prefix of the operators that need no model."""

EAGER_RULE = "identity"
"""The stock setting that changes nothing: it is the denominator of every speedup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest correct candidate of a tier."""

    speedup: float
    """Over eager, in request latency."""
    ci95: tuple[float, float]
    candidate: str
    operator: str
    tier: Tier
    """What it measured at; may be stricter than the column it wins."""
    candidate_ms: float
    reference_ms: float
    tags: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a task's search used up."""

    queries: int = 0
    """Sent and counted: answered, lost, open, or failed and charged."""
    queries_failed: int = 0
    queries_lost: int = 0
    queries_unpriced: int = 0
    """Answered by a model without a known price: missing from cost_usd."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Settled: the sum over answers with a price."""
    at_risk_usd: float = 0.0
    """Reserved for queries without an answer that may have been paid as well."""
    evaluations: int = 0
    lane_s: float = 0.0
    """Seconds that lanes of the judge were held."""
    gpu_s: float = 0.0
    """The same, where the device is a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The best so far after so many evaluations."""

    evaluation: int
    """Counted from 1 in the order in which verdicts became final."""
    elapsed_s: float
    """Since the first verdict."""
    speedup: float
    candidate: str


def is_stock(operator: str) -> bool:
    """True for a rule, or rules together, that only flip settings which torch ships."""
    names = operator.removeprefix(RULE).split("+")
    return operator.startswith(RULE) and all(n in RULES and RULES[n].stock for n in names)


def standing(history: TaskHistory) -> Mapping[str, StampedResult]:
    """Candidate id to its latest verdict that decided something, else its latest one."""
    latest: dict[str, StampedResult] = {}
    for verdict in history.verdicts:
        name = verdict.result.candidate_id
        if verdict.result.status.decides or name not in latest:
            latest[name] = verdict
    return latest


def best_per_tier(history: TaskHistory) -> Mapping[Tier, Best | None]:
    """The fastest correct candidate per tier; of equals the first judged."""
    passed = [best for _, best in _passed(history)]
    return {tier: _fastest(b for b in passed if b.tier.rank <= tier.rank) for tier in Tier}


def baselines(history: TaskHistory) -> Mapping[str, Best]:
    """Name of a stock setting to its own standing, for those that are correct at some tier."""
    found: dict[str, Best] = {}
    operators = history.operators
    for candidate_id, best in _passed(history):
        for operator in operators.get(candidate_id, ()):
            if is_stock(operator):
                found[operator.removeprefix(RULE)] = best
    return dict(sorted(found.items()))


def stock_speedup(history: TaskHistory, tier: Tier) -> float | None:
    """Speedup of the best stock setting of a tier, eager (1.0) included.

    None if no setting but eager was judged: an untried setting must not look like a beaten one.
    """
    eager = f"{RULE}{EAGER_RULE}"
    operators = history.operators
    tried = any(
        is_stock(operator) and operator != eager
        for candidate_id in standing(history)
        for operator in operators.get(candidate_id, ())
    )
    measured = [
        result.timing.reference_ms / result.timing.stock_best_ms
        for result in (v.result for v in standing(history).values())
        if result.timing and result.timing.stock_best_ms and result.tier
        if result.tier.rank <= tier.rank
    ]
    if not tried and not measured:
        return None
    speedups = [b.speedup for b in baselines(history).values() if b.tier.rank <= tier.rank]
    return max([1.0, *speedups, *measured])


def over_stock(history: TaskHistory, tier: Tier) -> float | None:
    """Speedup of the tier's best over the best stock setting of the same tier, or None."""
    best, stock = best_per_tier(history)[tier], stock_speedup(history, tier)
    return best.speedup / stock if best and stock else None


def trajectory(history: TaskHistory, tier: Tier) -> tuple[Step, ...]:
    """The best so far at every verdict that improved it, in the order verdicts became final."""
    steps: list[Step] = []
    start_s = history.verdicts[0].time if history.verdicts else 0.0
    for number, verdict in enumerate(history.verdicts, start=1):
        timing, measured = verdict.result.timing, verdict.result.tier
        if timing is None or measured is None or measured.rank > tier.rank:
            continue
        if not steps or timing.speedup > steps[-1].speedup:
            steps.append(
                Step(
                    evaluation=number,
                    elapsed_s=max(0.0, verdict.time - start_s),
                    speedup=timing.speedup,
                    candidate=verdict.result.candidate_id,
                )
            )
    return tuple(steps)


def status_counts(history: TaskHistory) -> Mapping[EvalStatus, int]:
    """How many verdicts of each status, every verdict counted; absent means none."""
    counted = Counter(v.result.status for v in history.verdicts)
    return {status: counted[status] for status in EvalStatus if counted[status]}


def cost(history: TaskHistory) -> Cost:
    """What the search of this task used up."""
    answered = [q.usage for q in history.queries if q.usage is not None]
    outcomes = Counter(q.outcome for q in history.queries)
    lane_s = sum(v.result.lane_s for v in history.verdicts)
    return Cost(
        queries=sum(_counts(q) for q in history.queries),
        queries_failed=outcomes[QueryOutcome.FAILED],
        queries_lost=outcomes[QueryOutcome.LOST],
        queries_unpriced=sum(not usage.priced for usage in answered),
        input_tokens=sum(usage.input_tokens for usage in answered),
        cached_tokens=sum(usage.cached_tokens for usage in answered),
        output_tokens=sum(usage.output_tokens for usage in answered),
        cost_usd=sum(usage.cost_usd for usage in answered),
        at_risk_usd=sum(q.cost_usd for q in history.queries if q.usage is None and _counts(q)),
        evaluations=len(history.verdicts),
        lane_s=lane_s,
        gpu_s=0.0 if history.device_kind == "cpu" else lane_s,
    )


def _counts(query: QueryRecord) -> bool:
    return query.outcome is not QueryOutcome.FAILED or query.charged


def _passed(history: TaskHistory) -> Iterator[tuple[str, Best]]:
    operators = history.operators
    for candidate_id, verdict in standing(history).items():
        result = verdict.result
        if result.timing is not None and result.tier is not None:
            names = operators.get(candidate_id, ())
            operator = next((n for n in names if is_stock(n)), names[0] if names else "unknown")
            source = history.sources.get(candidate_id, "")
            yield candidate_id, _best(result, result.timing, result.tier, operator, source)


def _best(result: EvalResult, timing: Timing, tier: Tier, operator: str, source: str) -> Best:
    return Best(
        speedup=timing.speedup,
        ci95=timing.ci95,
        candidate=result.candidate_id,
        operator=operator,
        tier=tier,
        candidate_ms=timing.candidate_ms,
        reference_ms=timing.reference_ms,
        tags=result.tags,
        source=source,
    )


def _fastest(candidates: Iterator[Best]) -> Best | None:
    best: Best | None = None
    for candidate in candidates:
        if best is None or candidate.speedup > best.speedup:
            best = candidate
    return best
