"""The agent: drives the search of a range of tasks, and journals before it believes.

It imports no torch and no GPU is near: it asks strategies what to do, rules and models for
programs, and the mailbox for verdicts. Killed at any instant, the same command goes on.
"""

from pike_hpc.agent.agent import AgentOptions, Outcome, run_agent
from pike_hpc.agent.controller import Controller
from pike_hpc.agent.memory import made_by
from pike_hpc.agent.queries import Models, Seat
from pike_hpc.agent.task_setup import TaskSetup
from pike_hpc.agent.wall import active_seconds

__all__ = [
    "AgentOptions",
    "Controller",
    "Models",
    "Outcome",
    "Seat",
    "TaskSetup",
    "active_seconds",
    "made_by",
    "run_agent",
]
