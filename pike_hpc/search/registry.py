"""The strategies by name. A new one is a new file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pike_hpc.records import Tier, UsageError, did_you_mean
from pike_hpc.search.budget import Limits
from pike_hpc.search.default import make_default
from pike_hpc.search.pike_b import make_pike_b
from pike_hpc.search.rules import make_rules
from pike_hpc.search.strategy import Setup, Strategy

STRATEGIES: Mapping[str, Callable[[Setup], Strategy]] = {
    "default": make_default,
    "pike_b": make_pike_b,
    "rules": make_rules,
}


def make_strategy(
    name: str,
    *,
    options: Mapping[str, object],
    seed: int,
    limits: Limits,
    portfolio: tuple[tuple[str, ...], ...],
    has_model: bool,
    tiers: tuple[Tier, ...] = tuple(Tier),
) -> Strategy:
    """The strategy of this name. Raises UsageError for an unknown name or option."""
    if name not in STRATEGIES:
        raise UsageError(
            f"no strategy {name!r}",
            where="search.strategy",
            valid=", ".join(STRATEGIES),
            fix=did_you_mean(name, STRATEGIES),
        )
    setup = Setup(
        limits=limits,
        portfolio=portfolio,
        has_model=has_model,
        tiers=tiers,
        seed=seed,
        options=options,
    )
    return STRATEGIES[name](setup)
