"""Actions: what a strategy wants done next, each under the name of its node.

A node is decided once: its outcome in the journal answers for it ever after.
"""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.records import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeByRule:
    """Rewrite the task's source by these rules, in this order."""

    node: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModel:
    """Ask the model of this role, and make ideas or a program of the answer."""

    node: str
    role: Role
    parent_id: str | None = None
    """The correct candidate to start from; None: the task's reference."""
    idea: str | None = None
    failed_id: str | None = None
    """The latest failing program of the branch; None: no answer held one."""
    failed_node: str | None = None
    """The decision to repair: its verdict, or the reason why it was declined, says what is
    wrong. It is not the node of `failed_id` where the latest answer held no program."""
    branch: int | None = None
    phase: int | None = None
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The search of this task is over."""

    reason: str
    """A sentence for people."""


Action = ProposeByRule | AskModel | Finish
