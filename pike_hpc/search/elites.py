"""Elites: which programs are timed again once a search has ended, and what holds after that.

The best of many noisy measurements is too good on average, and the more were made the more so.
So the search's value only says who is worth another look: the fastest of each tier are judged
again, on fresh seeds and in fresh processes, and it is that value which counts.

Contract: pure functions of the view; equal views give equal answers, so a killed agent goes on
where it was. A candidate that fails when it is judged again has lost its place for good.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pike_hpc.records import EvalResult, EvalStatus, Tier
from pike_hpc.search.view import TaskView

PER_TIER = 3
"""Candidates of a tier that are timed again: far more than the noise of a clean timing mixes up."""

MOST_ATTEMPTS = 3
"""Times that one candidate is judged again: once, once more for cause, and one judge's failure."""

ALLOWANCE = 24
"""Most requests of a task, beside its budget of evaluations: 3 tiers of 3, a stock setting of each,
and as many again for cause."""

NOISY = "noisy"
"""The judge's tag for: the machine was busy, time it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retime:
    """One candidate to be judged again."""

    candidate_id: str
    attempt: int
    """From 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who holds a tier, and by which measurement."""

    result: EvalResult
    retimed: bool
    """False: the search's own value, which is too good on average."""


def retimes_due(
    view: TaskView, tiers: Sequence[Tier], controls: Collection[str] = ()
) -> tuple[Retime, ...]:
    """Who is to be judged again now; what is under way is not repeated.

    Args:
        view: of a task whose search has ended.
        tiers: those accepted; each is a column of its own, stricter candidates count in it.
        controls: candidates that are stock settings: the fastest of a tier is timed again as
            well, for it is what the best is held against.
    """
    columns = [_column(view, tier, controls) for tier in tiers]
    wanted = [c for rank in itertools.zip_longest(*columns) for c in rank if c is not None]
    left = ALLOWANCE - sum(view.retimes_asked.values())
    found = [
        Retime(candidate_id=c, attempt=view.retimes_asked.get(c, 0) + 1)
        for c in dict.fromkeys(wanted)
    ]
    # By rank; but nobody is asked a second time before all were asked a first time.
    return tuple(sorted(found, key=lambda each: each.attempt)[: max(0, left)])


def leader(view: TaskView, tier: Tier) -> Leader | None:
    """The fastest at a tier or stricter: of those timed again, else of the search's."""
    again = [
        (-final.timing.speedup, candidate_id, final)
        for candidate_id in view.retimed
        if (final := settled(view, candidate_id)) is not None
        and final.timing is not None
        and _counts(final, tier)
    ]
    if again:
        return Leader(result=min(again, key=lambda each: each[:2])[2], retimed=True)
    left = [c for c in view.ranked(tier) if settled(view, c) is None]
    return Leader(result=view.results[left[0]], retimed=False) if left else None


def settled(view: TaskView, candidate_id: str) -> EvalResult | None:
    """The latest verdict on a candidate judged again, if one said anything about it."""
    verdicts = view.retimed.get(candidate_id, {})
    decided = [number for number, verdict in verdicts.items() if verdict.status.decides]
    return verdicts[max(decided)] if decided else None


def _column(view: TaskView, tier: Tier, controls: Collection[str]) -> list[str | None]:
    """One tier's candidates that are to be judged again now, by rank; None at the others'."""
    ranked = view.ranked(tier)
    held = _held(view, tier, ranked)
    fastest_control = [c for c in ranked if c in controls and _in_play(view, c, tier)][:1]
    watched = list(dict.fromkeys([*held, *fastest_control]))
    wanted = [c if _wants_another(view, c) else None for c in watched]
    if any(wanted) or any(_under_way(view, c) for c in watched):
        return wanted
    return list(_unconfirmed(view, held))


def _held(view: TaskView, tier: Tier, ranked: Sequence[str]) -> list[str]:
    """The fastest that have not lost their place, then as many that were timed amid noise.

    Noise hides the slow and the fast alike: a timing marked so says little about the order.
    """
    playing = [c for c in ranked if _in_play(view, c, tier)]
    noisy = [c for c in playing[PER_TIER:] if NOISY in view.verdicts[c].tags]
    return playing[:PER_TIER] + noisy[:PER_TIER]


def _unconfirmed(view: TaskView, held: Sequence[str]) -> Iterator[str]:
    """The new first, where timing again changed who is first and chose it by that very value."""
    timed = [
        (-final.timing.speedup, c)
        for c in held
        if (final := settled(view, c)) is not None and final.timing is not None
    ]
    if not timed:
        return
    first = min(timed)[1]
    if first != held[0] and view.retimes_asked[first] < 2:
        yield first


def _in_play(view: TaskView, candidate_id: str, tier: Tier) -> bool:
    """Whether a candidate may still hold this tier."""
    final = settled(view, candidate_id)
    if final is not None:
        return _counts(final, tier)
    given_up = view.retimes_asked.get(candidate_id, 0) >= MOST_ATTEMPTS
    return not given_up or _under_way(view, candidate_id)


def _counts(verdict: EvalResult, tier: Tier) -> bool:
    passed = verdict.status is EvalStatus.PASSED
    return passed and verdict.tier is not None and verdict.tier.rank <= tier.rank


def _under_way(view: TaskView, candidate_id: str) -> bool:
    asked = view.retimes_asked.get(candidate_id, 0)
    return asked > 0 and asked not in view.retimed.get(candidate_id, {})


def _wants_another(view: TaskView, candidate_id: str) -> bool:
    """Never judged again, or the last time said nothing, or was the first amid noise."""
    asked = view.retimes_asked.get(candidate_id, 0)
    if asked == 0:
        return True
    if asked >= MOST_ATTEMPTS or _under_way(view, candidate_id):
        return False
    verdicts = view.retimed[candidate_id]
    if not verdicts[asked].status.decides:
        return True
    noisy = [number for number, verdict in verdicts.items() if NOISY in verdict.tags]
    return noisy == [asked]
