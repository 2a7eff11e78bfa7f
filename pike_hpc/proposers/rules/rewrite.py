"""Rules by name, and a task's source rewritten by several of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pike_hpc.proposers.rules.attention import ATTENTION
from pike_hpc.proposers.rules.draft import Draft, Rule, Setting
from pike_hpc.proposers.rules.emit import clash, emit
from pike_hpc.proposers.rules.parallel import PARALLEL
from pike_hpc.proposers.rules.preparation import (
    COMPILE_MODES,
    FOLD,
    HALF,
    IDENTITY,
    LAYOUT,
    POOL,
    STRICT,
    TENSORRT,
)
from pike_hpc.proposers.rules.reference import model_forward
from pike_hpc.proposers.rules.toolchain import Toolchain
from pike_hpc.records import UsageError

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        IDENTITY,
        STRICT,
        ATTENTION,
        PARALLEL,
        FOLD,
        POOL,
        LAYOUT,
        HALF,
        *COMPILE_MODES,
        TENSORRT,
    )
}
"""Every rule by name, in the order in which several are applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A candidate."""

    source: str
    note: str
    """One line on what the rules did, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclinedByRule:
    """A rule's precondition does not hold."""

    rule: str
    reason: str


def rewrite(
    task_source: str,
    rules: Sequence[str],
    *,
    toolchain: Toolchain,
    device_kind: str,
    task_name: str = "the reference",
) -> Rewritten | DeclinedByRule:
    """A candidate made from the reference by these rules, applied in the order of RULES.

    Args:
        task_source: the task's source with its shape overrides applied (`effective_source`).
        rules: names of rules; their order does not matter.
        toolchain: of the machine that will build and run the candidate.
        device_kind: the GPU's model, or cpu.
        task_name: what the candidate's docstring calls the task.

    Raises:
        UsageError: no such rule.
    """
    if unknown := sorted(set(rules) - set(RULES)):
        raise UsageError(f"no rule {', '.join(unknown)}", valid=", ".join(RULES))
    chosen = [rule for name, rule in RULES.items() if name in rules]
    setting = Setting(toolchain=toolchain, device_kind=device_kind)
    try:
        ast.parse(task_source)
    except (SyntaxError, ValueError) as error:
        return DeclinedByRule(rule=chosen[0].name, reason=f"the reference is no Python: {error}")
    draft = Draft(source=task_source)
    for rule in chosen:
        if rule is not IDENTITY and model_forward(draft.source) is None:
            return DeclinedByRule(rule=rule.name, reason="class Model defines no forward itself")
        applied = rule.apply(draft, setting)
        if isinstance(applied, str):
            return DeclinedByRule(rule=rule.name, reason=applied)
        draft = applied
    if (name := clash(draft)) is not None:
        return DeclinedByRule(
            rule=chosen[-1].name, reason=f"the reference already uses the name {name}"
        )
    names = "+".join(rule.name for rule in chosen)
    notes = tuple(f"{rule.name}: {rule.summary}." for rule in chosen)
    return Rewritten(
        source=emit(draft, f"{task_name}, rewritten by rule:{names}.", notes),
        note="; ".join(rule.summary for rule in chosen),
    )
