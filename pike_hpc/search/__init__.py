"""How to search: pure decisions from the replay of a journal. Imports records only."""

from pike_hpc.search.actions import Action, AskModel, Finish, ProposeByRule
from pike_hpc.search.budget import (
    Limits,
    may_evaluate,
    why_no_device_time,
    why_no_evaluation,
    why_no_query,
    why_unjudgeable,
)
from pike_hpc.search.elites import Leader, Retime, leader, retimes_due
from pike_hpc.search.history import tried
from pike_hpc.search.query import OpenQuery, Query, QueryState
from pike_hpc.search.registry import STRATEGIES, make_strategy
from pike_hpc.search.snapshot import from_snapshot, to_snapshot
from pike_hpc.search.strategy import Setup, Strategy
from pike_hpc.search.verdict import Verdict
from pike_hpc.search.view import (
    NodeState,
    Outcome,
    Spent,
    TaskView,
    replay,
)

__all__ = [
    "STRATEGIES",
    "Action",
    "AskModel",
    "Finish",
    "Leader",
    "Limits",
    "NodeState",
    "OpenQuery",
    "Outcome",
    "ProposeByRule",
    "Query",
    "QueryState",
    "Retime",
    "Setup",
    "Spent",
    "Strategy",
    "TaskView",
    "Verdict",
    "from_snapshot",
    "leader",
    "make_strategy",
    "may_evaluate",
    "replay",
    "retimes_due",
    "to_snapshot",
    "tried",
    "why_no_device_time",
    "why_no_evaluation",
    "why_no_query",
    "why_unjudgeable",
]
