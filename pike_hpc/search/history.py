"""History: what a search has tried so far, in lines short enough for a prompt.

Contract: only decisions before `phase` count, so a prompt does not depend on which sibling was
judged first. The notes come from rules and models: data for whoever shows them.
"""

from __future__ import annotations

from pike_hpc.records import EvalStatus, Proposal
from pike_hpc.search.view import TaskView

_NOTE_CHARS = 160


def tried(view: TaskView, *, phase: int | None, limit: int = 8) -> tuple[str, ...]:
    """Up to `limit` programs judged before `phase`, the fastest first, failures after them.

    `phase` None takes in the rules only.
    """
    rows: dict[str, tuple[float, str]] = {}
    for proposal in view.proposals.values():
        if proposal.phase is not None and (phase is None or proposal.phase >= phase):
            continue
        result = view.results.get(proposal.candidate_id)
        if result is None or result.status is EvalStatus.JUDGE_ERROR:
            continue
        if result.timing is not None and result.tier is not None:
            outcome = f"correct at {result.tier.value}, {result.timing.speedup:.2f}x"
            rows.setdefault(proposal.candidate_id, (-result.timing.speedup, outcome))
        else:
            rows.setdefault(proposal.candidate_id, (0.0, result.status.value))
    first = {p.candidate_id: p for p in reversed(list(view.proposals.values()))}
    ordered = sorted(rows, key=lambda candidate_id: (rows[candidate_id][0], candidate_id))
    return tuple(f"{_name(first[c])}: {rows[c][1]}" for c in ordered[:limit])


def _name(proposal: Proposal) -> str:
    note = " ".join(proposal.note.split())[:_NOTE_CHARS]
    return f"{proposal.operator} ({note})" if note else proposal.operator
