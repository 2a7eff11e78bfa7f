"""Decisions: the event that each comes to, from a rule or from a model's answer.

Pure: the same task and the same answer give the same event, so what is made of a paid answer does
not depend on whether the agent was killed in between.
"""

from __future__ import annotations

from pike_hpc.agent.task_setup import TaskSetup
from pike_hpc.proposers.agents import NoProgram, extract_program, parse_ideas
from pike_hpc.proposers.rules import DeclinedByRule, rewrite
from pike_hpc.records import (
    Brainstormed,
    Candidate,
    Declined,
    Proposal,
    Proposed,
    QueryAnswered,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Role,
)
from pike_hpc.search import ProposeByRule
from pike_hpc.tasks import effective_source


def by_rule(setup: TaskSetup, action: ProposeByRule) -> Proposed | Declined:
    """What these rules make of the task's program."""
    operator = "rule:" + "+".join(action.rules)
    outcome = rewrite(
        effective_source(setup.task),
        action.rules,
        toolchain=setup.toolchain,
        device_kind=setup.device_kind,
        task_name=f"{setup.task.key} {setup.task.name}",
    )
    if isinstance(outcome, DeclinedByRule):
        reason = f"{outcome.rule}: {outcome.reason}"
        return Declined(node=action.node, operator=operator, reason=reason)
    candidate = Candidate(task_digest=setup.task.digest, source=outcome.source)
    proposal = Proposal(candidate_id=candidate.id, operator=operator, note=outcome.note)
    return _proposed(setup, action.node, proposal, outcome.source)


def by_answer(
    setup: TaskSetup, query: QueryReserved, answer: QueryAnswered, ideas: int
) -> Brainstormed | Proposed | Declined:
    """What is in a model's answer; of ideas at most `ideas`."""
    if query.role == Role.BRAINSTORM:
        return Brainstormed(node=query.node, ideas=parse_ideas(answer.text, ideas))
    program = extract_program(answer.text, answer.finish_reason)
    if isinstance(program, NoProgram):
        return Declined(node=query.node, operator=query.role, reason=program.reason)
    candidate = Candidate(task_digest=setup.task.digest, source=program.source)
    proposal = Proposal(
        candidate_id=candidate.id,
        operator=query.role,
        parent_ids=query.parent_ids,
        branch=query.branch,
        phase=query.phase,
        round=query.round,
        note=query.note,
    )
    return _proposed(setup, query.node, proposal, program.source)


def _proposed(setup: TaskSetup, node: str, proposal: Proposal, source: str) -> Proposed | Declined:
    try:
        setup.request(source)
    except ValueError as error:  # too large
        return Declined(node=node, operator=proposal.operator, reason=str(error))
    return Proposed(node=node, proposal=proposal, source=source)


def lost(query: QueryReserved) -> QueryLost | QueryFailed:
    """What becomes of a query that was in flight when its controller died.

    One that may have been paid counts at its ceiling; one that cost nothing is asked again as
    if it had never been, so that a replay ends where the recording ended.
    """
    if query.max_cost_usd > 0:
        return QueryLost(query_id=query.query_id)
    return QueryFailed(
        query_id=query.query_id,
        kind="lost",
        message="the controller died while this free query was in flight",
    )
