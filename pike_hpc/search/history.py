"""History: what a search has tried so far, in lines short enough for a prompt.

Contract: only decisions before `phase` count, so a prompt does not depend on which sibling was
judged first. The notes come from rules and models: data for whoever shows them.
"""

from __future__ import annotations

import heapq

from pike_hpc.records import EvalStatus, Proposal
from pike_hpc.search.verdict import Verdict
from pike_hpc.search.view import TaskView

_NOTE_CHARS = 160


def tried(view: TaskView, *, phase: int | None, limit: int = 8) -> tuple[str, ...]:
    """Up to `limit` programs judged before `phase`, the fastest first, failures after them.

    `phase` None takes in the rules only.
    """
    before = {
        proposal.candidate_id
        for proposal in view.proposals.values()
        if proposal.phase is None or (phase is not None and proposal.phase < phase)
    }
    known = view.verdicts
    rows = [
        (-(known[candidate_id].speedup or 0.0), candidate_id)
        for candidate_id in before & known.keys()
        if known[candidate_id].status is not EvalStatus.JUDGE_ERROR
    ]
    best = [candidate_id for _, candidate_id in heapq.nsmallest(limit, rows)]
    return tuple(f"{_name(_first(view, c))}: {_outcome(known[c])}" for c in best)


def _first(view: TaskView, candidate_id: str) -> Proposal:
    """Of several proposals of one program the oldest."""
    return view.proposals[view.nodes_of[candidate_id][0]]


def _outcome(verdict: Verdict) -> str:
    if verdict.speedup is not None and verdict.tier is not None:
        return f"correct at {verdict.tier.value}, {verdict.speedup:.2f}x"
    return verdict.status.value


def _name(proposal: Proposal) -> str:
    note = " ".join(proposal.note.split())[:_NOTE_CHARS]
    return f"{proposal.operator} ({note})" if note else proposal.operator
