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
def _nodes(index: int, branches: int, fix_attempts: int) -> tuple[str, ...]:
    return tuple(node_of(index, b, r) for r in range(fix_attempts + 1) for b in range(branches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The branches of one phase."""

    index: int
    branches: int
    fix_attempts: int

    def nodes(self) -> tuple[str, ...]:
        """Every decision of the phase in the order in which the room is given out."""
        return _nodes(self.index, self.branches, self.fix_attempts)

    def room(self, view: TaskView, limits: Limits) -> float:
        """Queries the phase may use, from what was used outside it: infinite without limits.

        An answer can bring a program to judge, so the evaluations left bound it as well.
        """
        own = set(self.nodes())
        room = math.inf
        if limits.queries:
            outside = view.charged_queries - sum(
                view.charged(node) for node in own if node in view.queries_of
            )
            room = limits.queries - outside
        if limits.evaluations:
            earlier = {o.candidate_id for n, o in view.outcomes.items() if n not in own}
            evaluations = len(earlier & set(view.requested.values()))
            room = min(room, limits.evaluations - evaluations)
        return room

    def step(self, view: TaskView, limits: Limits) -> Step:
        """What to ask now, and whether the phase has ended."""
        walk = _Allotment(room=self.room(view, limits))
        unjudgeable = why_no_evaluation(view, limits) is not None
        live = list(range(self.branches))
        for round_ in range(self.fix_attempts + 1):
            going_on = []
            for branch in live:
                if branch in walk.unsure:
                    walk.most += 1
                    going_on.append(branch)
                    continue
                turn = self._turn(view, node_of(self.index, branch, round_), unjudgeable)
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
            result = view.result(node)
            assert result is not None
            over = result.status in (EvalStatus.PASSED, EvalStatus.JUDGE_ERROR)
            return _Turn.ENDED if over else _Turn.FAILED
        if state is NodeState.PROPOSED and unjudgeable:
            waiting = view.outcomes[node].candidate_id in view.unjudged.values()
            return _Turn.UNDER_WAY if waiting else _Turn.ENDED
        return _Turn.UNDER_WAY
