"""The figures of one task, from its history alone. Pure: no archive, no pandas, no clock.

Definitions are in docs/report.md. A candidate counts with the latest verdict of those on which it
was judged again, else with its latest of the search, and then never before one that was judged
again. Stricter tiers count in looser columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pike_hpc.analysis.history import TaskHistory
from pike_hpc.archive import QueryOutcome, QueryRecord, StampedResult
from pike_hpc.archive import standing as latest
from pike_hpc.proposers.rules import is_stock_operator
from pike_hpc.records import EvalStatus, Tier

RULE = "rule:"
"""Prefix of the operators that need no model."""

EAGER_RULE = "identity"
"""The stock setting that changes nothing: it is the denominator of every speedup."""

STRICT_RULE = "strict_fp32"
"""The stock setting with TF32 off everywhere: the denominator of who must have full fp32."""


NOISY = "noisy"
"""The judge's tag of what was timed while others worked."""


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
    retimed: bool
    """False: the search's own value, the best of many and therefore too good on average."""
    search_speedup: float | None
    """What the search measured; None where its verdict is not in the archive."""
    tags: tuple[str, ...] = ()
    source: str = ""

    @property
    def noisy(self) -> bool:
        """Whether other work kept the machine busy meanwhile: its interval may be wrong."""
        return NOISY in self.tags


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
    """Of the search."""
    retimes: int = 0
    """Evaluations of candidates that were judged again."""
    lane_s: float = 0.0
    """Seconds that lanes of the judge were held, for both."""
    gpu_s: float = 0.0
    """The same, where the device is a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What became of the search's winners when they were judged again."""

    ratios: tuple[float, ...] = ()
    """Of each that passed again: the search's speedup over the one that counts."""
    lost: int = 0
    """Those that did not pass again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The best so far after so many evaluations."""

    evaluation: int
    """Counted from 1 in the order in which verdicts became final."""
    elapsed_s: float
    """Since the first verdict."""
    speedup: float
    candidate: str


def standing(history: TaskHistory) -> Mapping[str, StampedResult]:
    """Candidate id to the search's verdict on it: the latest that decided something."""
    return latest(history.verdicts)


def judged_again(history: TaskHistory) -> Mapping[str, StampedResult]:
    """Candidate id to the verdict that counts, of those judged again and decided on."""
    again = latest(history.retimes).items()
    return {name: verdict for name, verdict in again if verdict.result.status.decides}


def best_per_tier(history: TaskHistory) -> Mapping[Tier, Best | None]:
    """The fastest correct candidate per tier, of those judged again where there are any.

    Of equals the first judged.
    """
    passed = [best for _, best in _passed(history)]
    return {tier: _fastest(b for b in passed if b.tier.rank <= tier.rank) for tier in Tier}


def baselines(history: TaskHistory) -> Mapping[str, Best]:
    """Name of a stock setting to its own standing, for those that are correct at some tier."""
    found: dict[str, Best] = {}
    operators = history.operators
    for candidate_id, best in _passed(history):
        for operator in operators.get(candidate_id, ()):
            if is_stock_operator(operator):
                found[operator.removeprefix(RULE)] = best
    return dict(sorted(found.items()))


def stock_speedup(history: TaskHistory, tier: Tier) -> float | None:
    """Speedup of the best stock setting of a tier, eager (1.0) included.

    Of those timed again where there are any: the others' is the best of many and too good. None if
    no setting but eager was judged: an untried setting must not look like a beaten one.
    """
    eager = (f"{RULE}{EAGER_RULE}", f"{RULE}{STRICT_RULE}")
    operators = history.operators
    tried = any(
        is_stock_operator(operator) and operator not in eager
        for candidate_id in standing(history)
        for operator in operators.get(candidate_id, ())
    )
    found = [
        (again, result.timing.reference_ms / result.timing.stock_best_ms)
        for again, verdicts in ((False, standing(history)), (True, judged_again(history)))
        for result in (v.result for v in verdicts.values())
        if result.timing and result.timing.stock_best_ms and result.tier
        if result.tier.rank <= tier.rank
    ]
    if not tried and not found:
        return None
    settings = [b for b in baselines(history).values() if b.tier.rank <= tier.rank]
    found += [(best.retimed, best.speedup) for best in settings]
    counting = [speedup for again, speedup in found if again] or [speedup for _, speedup in found]
    return max([1.0, *counting])


def over_stock(history: TaskHistory, tier: Tier) -> float | None:
    """Speedup of the tier's best over the best stock setting of the same tier, or None."""
    best, stock = best_per_tier(history)[tier], stock_speedup(history, tier)
    return best.speedup / stock if best and stock else None


def selection(history: TaskHistory) -> Selection:
    """How the search's winners, one a tier, did when they were judged again."""
    passed = [best for _, best in _passed(replace(history, retimes=()))]
    again = judged_again(history)
    ratios, lost = [], 0
    firsts = [_fastest(b for b in passed if b.tier.rank <= tier.rank) for tier in Tier]
    for winner in dict.fromkeys(first for first in firsts if first is not None):
        verdict = again.get(winner.candidate)
        if verdict is None:
            continue
        if verdict.result.timing is None:
            lost += 1
        else:
            ratios.append(winner.speedup / verdict.result.timing.speedup)
    return Selection(ratios=tuple(ratios), lost=lost)


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
    lane_s = sum(v.result.lane_s for v in (*history.verdicts, *history.retimes))
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
        retimes=len(history.retimes),
        lane_s=lane_s,
        gpu_s=0.0 if history.device_kind == "cpu" else lane_s,
    )


def _counts(query: QueryRecord) -> bool:
    return query.outcome is not QueryOutcome.FAILED or query.charged


def _passed(history: TaskHistory) -> Iterator[tuple[str, Best]]:
    """Every candidate whose verdict that counts is a pass."""
    searched, again = standing(history), judged_again(history)
    operators = history.operators
    for name in dict.fromkeys([*searched, *again]):
        first = searched[name].result if name in searched else None
        second = again[name].result if name in again else None
        counts = second or first
        if counts is None or counts.timing is None or counts.tier is None:
            continue
        names = operators.get(name, ())
        yield (
            name,
            Best(
                speedup=counts.timing.speedup,
                ci95=counts.timing.ci95,
                candidate=name,
                operator=next(
                    (n for n in names if is_stock_operator(n)), names[0] if names else "unknown"
                ),
                tier=counts.tier,
                candidate_ms=counts.timing.candidate_ms,
                reference_ms=counts.timing.reference_ms,
                retimed=second is not None,
                search_speedup=first.timing.speedup if first and first.timing else None,
                tags=counts.tags,
                source=history.sources.get(name, ""),
            ),
        )


def _fastest(candidates: Iterator[Best]) -> Best | None:
    best: Best | None = None
    for candidate in candidates:
        if best is None or _rank(candidate) > _rank(best):
            best = candidate
    return best


def _rank(best: Best) -> tuple[bool, float]:
    return best.retimed, best.speedup
