"""Strategy `rules`: the portfolio in its order, one program for each composition that applies.

Contract: looks at declines and at how many programs there are, never at a measured time, so an
interrupted search tries the same set as an uninterrupted one. A composition with a rule that
was declined on its own earlier in the portfolio is left out. Programs that turn out equal cost
one evaluation; the evaluation budget goes to the first distinct ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.search.actions import Action, Finish, ProposeByRule
from pike_hpc.search.budget import why_no_evaluation
from pike_hpc.search.options import parse_options
from pike_hpc.search.strategy import Setup
from pike_hpc.search.view import NodeState, TaskView

NODE_PREFIX = "rule/"


def node_of(rules: tuple[str, ...]) -> str:
    """The node that decides this composition."""
    return NODE_PREFIX + "+".join(rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesOptions:
    """It takes none."""


@dataclass(frozen=True, slots=True)
class RulesStrategy:
    """See the module."""

    setup: Setup

    def decide(self, view: TaskView) -> tuple[Action, ...]:
        """Every composition that is ready and affordable, then Finish."""
        if view.finished is not None:
            return ()
        ready, left_out = self._ready(view)
        stop = why_no_evaluation(view, self.setup.limits)
        if ready and stop is None:
            return ready
        waiting = set(view.unjudged.values())
        open_ = [c for c in self._candidates(view) if c in waiting or c not in view.verdicts]
        if any(c in waiting or stop is None for c in open_):
            return ()
        if stop is not None and (left_out or ready or open_):
            return (Finish(reason=f"{stop} The portfolio of rules was not tried to its end."),)
        if not self.setup.portfolio:
            return (Finish(reason="The portfolio of rules is empty: nothing to try."),)
        return (Finish(reason="Every rule of the portfolio was tried."),)

    def _candidates(self, view: TaskView) -> list[str]:
        """The programs that rules made."""
        outcomes = (view.outcomes.get(node_of(rules)) for rules in self.setup.portfolio)
        return [o.candidate_id for o in outcomes if o is not None and o.candidate_id is not None]

    def _ready(self, view: TaskView) -> tuple[tuple[Action, ...], bool]:
        """The next undecided compositions, and whether the budget left some out."""
        limit = self.setup.limits.evaluations
        candidates: set[str] = set()
        actions: list[Action] = []
        alone: dict[str, str] = {}
        for rules in dict.fromkeys(self.setup.portfolio):
            node = node_of(rules)
            outcome = view.outcomes.get(node)
            singles = [view.state(alone[rule]) for rule in rules if rule in alone]
            if len(rules) == 1:
                alone[rules[0]] = node
            if outcome is not None:
                candidates |= {outcome.candidate_id} if outcome.candidate_id else set()
                continue
            if NodeState.DECLINED in singles:
                continue
            if NodeState.UNDECIDED in singles:
                # Whether it applies is known once the single rule was tried; nothing later may
                # overtake it, or the budget would depend on who was asked first.
                break
            if limit and len(candidates) + len(actions) >= limit:
                return tuple(actions), True
            actions.append(ProposeByRule(node=node, rules=rules))
        return tuple(actions), False


def make_rules(setup: Setup) -> RulesStrategy:
    """The strategy as the registry makes it. Raises UsageError for any option."""
    parse_options(RulesOptions, setup.options, strategy="rules")
    return RulesStrategy(setup)
