"""Strategy `default`: the rules first, then PIKE-B from their winners where a model is configured.

Contract: without a model it is `rules`. With one, the first phase starts from the best programs
of the portfolio, which also stay among the parents of every later phase. Takes PIKE-B's options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pike_hpc.search.actions import Action, Finish
from pike_hpc.search.options import parse_options
from pike_hpc.search.pike_b import PikeBOptions, PikeBStrategy, make_pike_b
from pike_hpc.search.rules import RulesStrategy
from pike_hpc.search.strategy import Setup
from pike_hpc.search.view import TaskView


@dataclass(frozen=True, slots=True)
class DefaultStrategy:
    """See the module."""

    rules: RulesStrategy
    model: PikeBStrategy | None

    def decide(self, view: TaskView) -> tuple[Action, ...]:
        """What the rules want; once they are done, what PIKE-B wants."""
        actions = self.rules.decide(view)
        match actions:
            case (Finish(reason=reason),):
                if self.model is not None:
                    return self.model.decide(view)
                return (Finish(reason=f"{reason} No model is configured to go on with."),)
        return actions


def make_default(setup: Setup) -> DefaultStrategy:
    """The strategy as the registry makes it. Raises UsageError."""
    parse_options(PikeBOptions, setup.options, strategy="default")
    rules = RulesStrategy(replace(setup, options={}))
    return DefaultStrategy(rules, make_pike_b(setup) if setup.has_model else None)
