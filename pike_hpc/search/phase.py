"""One phase of PIKE-B: branches that each try one program and repair it while it fails.

Contract: `step` says which queries to send now and whether the phase has ended. The room (the
queries the phase may use) goes to its decisions in one order: first programs by branch, then the
first repairs by branch, and so on. A query is sent at once where it fits even if every earlier
decision still needs one, never where it can't fit, and waits in between. So which decisions get
a query does not depend on which answer or verdict arrived first. Knows no ideas and no parents.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pike_hpc.records import EvalStatus
from pike_hpc.search.budget import Limits, why_no_evaluation
from pike_hpc.search.view import NodeState, TaskView


def node_of(phase: int, branch: int, round_: int) -> str:
    """The node of a branch's program in a repair round; round 0 is its first."""
    return f"p{phase}/b{branch}/r{round_}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A query that is ready."""

    branch: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a phase wants now."""

    asks: tuple[Ask, ...]
    ended: bool
    """Every branch has a correct program, no rounds left, or no room for another query."""
    room: float
    """Queries that the whole phase may use."""


class _Turn(enum.Enum):
    """What one decision of a branch means for the branch."""

    NEEDED = enum.auto()
    UNDER_WAY = enum.auto()
    FAILED = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class _Allotment:
    """Gives out the room in order; `least` and `most` bound the queries of what came before."""

    room: float
    least: int = 0
    most: int = 0
    running: bool = False
    asks: list[Ask] = field(default_factory=list)
    unsure: set[int] = field(default_factory=set)
    """Branches of which it isn't known yet whether they come to their next round."""

    def visit(self, branch: int, round_: int, turn: _Turn) -> bool:
        """Account for one decision; whether the branch may come to its next round."""
        if turn is not _Turn.NEEDED:
            self.least, self.most = self.least + 1, self.most + 1
            if turn is _Turn.UNDER_WAY:
                self.running = True
                self.unsure.add(branch)
            return turn is not _Turn.ENDED
        if self.least >= self.room:
            return False
        if self.most < self.room:
            self.asks.append(Ask(branch=branch, round=round_))
            self.least += 1
        self.most += 1
        self.unsure.add(branch)
        return True


@functools.lru_cache(maxsize=4096)
def nodes_of(index: int, branches: int, fix_attempts: int) -> tuple[tuple[str, ...], ...]:
    """The nodes of a phase: of each round those of all branches."""
    rounds = range(fix_attempts + 1)
    return tuple(tuple(node_of(index, b, r) for b in range(branches)) for r in rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The branches of one phase."""

    index: int
    branches: int
    fix_attempts: int

    @property
    def nodes(self) -> tuple[tuple[str, ...], ...]:
        """Every decision of the phase in the order in which the room is given out, by round."""
        return nodes_of(self.index, self.branches, self.fix_attempts)

    def made(self, view: TaskView) -> tuple[tuple[int, str], ...] | None:
        """Branch and candidate of each program, once no event can add to them; None before.

        Every branch then has a correct program or no rounds left, and no verdict is the judge's
        failure, which a later one could replace.
        """
        programs: list[tuple[int, str]] = []
        for branch in range(self.branches):
            for row in self.nodes:
                outcome = view.outcomes.get(row[branch])
                if outcome is None:
                    return None
                if outcome.candidate_id is None:
                    continue
                if not view.is_final(outcome.candidate_id):
                    return None
                programs.append((branch, outcome.candidate_id))
                if view.verdicts[outcome.candidate_id].status is EvalStatus.PASSED:
                    break
        return tuple(programs)

    def room(self, view: TaskView, limits: Limits) -> float:
        """Queries the phase may use, from what was used outside it: infinite without limits.

        An answer can bring a program to judge, so the evaluations left bound it as well.
        """
        own = [
            node
            for row in self.nodes
            for node in row
            if node in view.queries_of or node in view.outcomes
        ]
        room = math.inf
        if limits.queries:
            room = limits.queries - (view.charged_queries - sum(map(view.charged, own)))
        if limits.evaluations:
            room = min(room, limits.evaluations - self._evaluated_outside(view, own))
        return room

    def _evaluated_outside(self, view: TaskView, own: Sequence[str]) -> int:
        """Candidates asked to be judged that (also) another phase has made."""
        asked = view.requested_candidates
        outcomes = (view.outcomes.get(node) for node in own)
        made = {o.candidate_id for o in outcomes if o is not None and o.candidate_id in asked}
        only_here = sum(set(view.nodes_of[c]) <= set(own) for c in made if c is not None)
        return sum(map(view.nodes_of.__contains__, asked)) - only_here

    def step(self, view: TaskView, limits: Limits) -> Step:
        """What to ask now, and whether the phase has ended."""
        walk = _Allotment(room=self.room(view, limits))
        unjudgeable = why_no_evaluation(view, limits) is not None
        live = list(range(self.branches))
        for round_, row in enumerate(self.nodes):
            going_on = []
            for branch in live:
                if branch in walk.unsure:
                    walk.most += 1
                    going_on.append(branch)
                    continue
                turn = self._turn(view, row[branch], unjudgeable)
                if walk.visit(branch, round_, turn):
                    going_on.append(branch)
            live = going_on
        # The walk counts one query a decision; one that was lost has been paid twice.
        left = limits.queries - view.charged_queries if limits.queries else len(walk.asks)
        asks = tuple(walk.asks[: max(0, left)])
        return Step(asks=asks, ended=not (asks or walk.running), room=walk.room)

    @staticmethod
    def _turn(view: TaskView, node: str, unjudgeable: bool) -> _Turn:
        """What has become of one decision."""
        state = view.state(node)
        if state is NodeState.UNDECIDED:
            return _Turn.NEEDED
        if state is NodeState.DECLINED:
            return _Turn.FAILED
        if state is NodeState.JUDGED:
            verdict = view.verdict(node)
            assert verdict is not None
            over = verdict.status in (EvalStatus.PASSED, EvalStatus.JUDGE_ERROR)
            return _Turn.ENDED if over else _Turn.FAILED
        if state is NodeState.PROPOSED and unjudgeable:
            waiting = view.outcomes[node].candidate_id in view.unjudged.values()
            return _Turn.UNDER_WAY if waiting else _Turn.ENDED
        return _Turn.UNDER_WAY
