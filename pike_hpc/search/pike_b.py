"""Strategy `pike_b`: brainstorm, then phases of branches that start from the best so far.

Contract: one query for ideas (node "ideas"); then phases (`search.phase`) until the budget is
used. Each branch of a phase starts from one of the `parents` best correct candidates of the whole
search, the samples split evenly ([3, 3, 2, 2] for 10 over 4); until something is correct it
starts from the reference. Phase 0 gives each branch an idea.

Differences to PIKE, on purpose: the brainstorm counts as a query; the budget is never exceeded,
not even by branches - 1; parents come from the whole search instead of the previous phase only;
and the best of each lineage goes before the second best of any, so one idea can't crowd out the
others. A lineage is an idea of phase 0 with all that descends from it; rules are one lineage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pike_hpc.records import Role, UsageError
from pike_hpc.search.actions import Action, AskModel, Finish
from pike_hpc.search.budget import may_evaluate, why_no_evaluation, why_no_query
from pike_hpc.search.options import option, parse_options
from pike_hpc.search.phase import Ask, Phase, node_of
from pike_hpc.search.ranking import Ranking
from pike_hpc.search.rules import NODE_PREFIX
from pike_hpc.search.strategy import Setup
from pike_hpc.search.view import NodeState, TaskView

IDEAS_NODE = "ideas"
_RULES_LINEAGE = "rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class PikeBOptions:
    """Defaults are those of PIKE's published runs (10 branches, top 4, 5 fix attempts)."""

    branches: int = option(10, least=1)
    parents: int = option(4, least=1)
    fix_attempts: int = option(5, least=0)
    phases: int = option(0, least=0)
    """0: as many as the budget allows."""


@dataclass(frozen=True, slots=True)
class PikeBStrategy:
    """See the module."""

    setup: Setup
    options: PikeBOptions

    def decide(self, view: TaskView) -> tuple[Action, ...]:
        """The queries that are ready, () to wait, or Finish."""
        if view.finished is not None:
            return ()
        wanted = self._wanted(view)
        stop = self._stop(view)
        if wanted and stop is None and not isinstance(wanted[0], Finish):
            return wanted
        to_request = view.unrequested and may_evaluate(view, self.setup.limits)
        if not view.idle or to_request:
            return ()
        if stop is not None:
            return (Finish(reason=stop),)
        return wanted

    def _stop(self, view: TaskView) -> str | None:
        """The limit that is reached, as a sentence."""
        limits = self.setup.limits
        return why_no_query(view, limits) or why_no_evaluation(view, limits)

    def _wanted(self, view: TaskView) -> tuple[Action, ...]:
        """What comes next, budgets other than a phase's room aside; () to wait."""
        state = view.state(IDEAS_NODE)
        if state is NodeState.UNDECIDED:
            return (AskModel(node=IDEAS_NODE, role=Role.BRAINSTORM),)
        if state in (NodeState.ASKED, NodeState.ANSWERED):
            return ()
        ideas = view.outcomes[IDEAS_NODE].ideas or ()
        for phase, starts in self._phases(view):
            step = phase.step(view, self.setup.limits)
            if not step.ended:
                return tuple(self._ask(view, phase, ask, starts, ideas) for ask in step.asks)
            if step.room <= 0:
                return (Finish(reason="The budget has no room for another phase."),)
        return (Finish(reason=f"All {self.options.phases} phases are done."),)

    def _phases(self, view: TaskView) -> Iterator[tuple[Phase, tuple[str | None, ...]]]:
        """Each phase with the parent of each of its branches, from what came before it."""
        began, past = self._past(view)
        ranking, last = past.copy(), self.options.phases
        for index in range(began, last) if last else itertools.count(began):
            phase, starts = self._phase(index), self._starts(ranking)
            yield phase, starts
            outcomes = (
                (branch, view.outcomes.get(row[branch]))
                for branch in range(self.options.branches)
                for row in phase.nodes
            )
            programs = ((b, o.candidate_id) for b, o in outcomes if o is not None)
            _descend(view, ranking, index, starts, ((b, c) for b, c in programs if c is not None))

    def _past(self, view: TaskView) -> tuple[int, Ranking]:
        """How many phases, from the first on, nothing can change any more; the ranking after them.

        They are remembered: a search of a hundred phases looks at its last one only.
        """
        rules = tuple(
            outcome.candidate_id
            for node, outcome in view.outcomes.items()
            if node.startswith(NODE_PREFIX) and outcome.candidate_id is not None
        )
        what = ("pike_b", self.options, self.setup.tier, rules)
        index, ranking = view.remembered.get(what, (0, None))
        if ranking is None:
            ranking = Ranking(self.setup.tier)
            for candidate_id in rules:
                ranking.add(view, candidate_id, _RULES_LINEAGE)
            if not all(view.is_final(candidate_id) for candidate_id in rules):
                return 0, ranking
        while not self.options.phases or index < self.options.phases:
            programs = self._phase(index).made(view)
            if programs is None:
                break
            _descend(view, ranking, index, self._starts(ranking), programs)
            index += 1
        view.remembered[what] = (index, ranking)
        return index, ranking

    def _phase(self, index: int) -> Phase:
        return Phase(
            index=index, branches=self.options.branches, fix_attempts=self.options.fix_attempts
        )

    def _starts(self, ranking: Ranking) -> tuple[str | None, ...]:
        """The parent of each branch: the best of each lineage first, then the rest by speed."""
        parents = ranking.best(self.options.parents)
        if not parents:
            return (None,) * self.options.branches
        return tuple(spread(parents, self.options.branches))

    def _ask(
        self,
        view: TaskView,
        phase: Phase,
        ask: Ask,
        starts: tuple[str | None, ...],
        ideas: tuple[str, ...],
    ) -> AskModel:
        """The query of one branch and round, with what it is to repair."""
        earlier = [node_of(phase.index, ask.branch, r) for r in range(ask.round)]
        programs = [view.outcomes[node].candidate_id for node in earlier]
        return AskModel(
            node=node_of(phase.index, ask.branch, ask.round),
            role=Role.FIX if ask.round else Role.OPTIMISE,
            parent_id=starts[ask.branch],
            idea=ideas[ask.branch % len(ideas)] if ideas and phase.index == 0 else None,
            failed_id=next((p for p in reversed(programs) if p is not None), None),
            failed_node=earlier[-1] if earlier else None,
            branch=ask.branch,
            phase=phase.index,
            round=ask.round,
        )


def _descend(
    view: TaskView,
    ranking: Ranking,
    index: int,
    starts: Sequence[str | None],
    programs: Iterable[tuple[int, str]],
) -> None:
    """Add a phase's programs (branch, candidate) to the lineages of what they started from."""
    for branch, candidate_id in programs:
        parent = starts[branch]
        root = ranking.lineage[parent] if parent is not None else f"p{index}/b{branch}"
        ranking.add(view, candidate_id, root)


def spread(parents: list[str], samples: int) -> list[str]:
    """Samples split evenly over parents, the remainder to the first: 10 over 4 is 3, 3, 2, 2."""
    share, more = divmod(samples, len(parents))
    return [p for i, p in enumerate(parents) for _ in range(share + (i < more))]


def make_pike_b(setup: Setup) -> PikeBStrategy:
    """The strategy as the registry makes it. Raises UsageError."""
    options = parse_options(PikeBOptions, setup.options, strategy="pike_b")
    if not setup.has_model:
        raise UsageError(
            "strategy pike_b asks a model and none is configured",
            where="search.strategy",
            fix="add models.optimise to the workflow, or use strategy rules",
        )
    if not (setup.limits.queries or setup.limits.max_usd or options.phases):
        raise UsageError(
            "nothing would end this search",
            where="budget",
            fix="set budget.queries_per_task, budget.max_usd or search.options.phases",
        )
    return PikeBStrategy(setup, options)
