"""Prompts from templates: what a model is told for each role.

Contract: templates are data (prompts/*.md, `$name` placeholders). The order is fixed text, then
the task, then what varies, so that providers can cache the common prefix. Everything that comes
from a program, a log or a model is cleaned, bounded and fenced. Equal arguments give equal
prompts. Knows no provider, no search and no journal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template

from pike_hpc.proposers.agents.fence import clean, fenced, head_and_tail, one_line, tail
from pike_hpc.records import Role

MAX_SOURCE_CHARS = 60_000
"""Of one program in a prompt; the longest shipped task has about a fifth of it."""

MAX_LOG_CHARS = 10_000
"""As in PIKE."""

MAX_LINE_CHARS = 400
MAX_HISTORY, MAX_PROFILE = 12, 8
"""Lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The two messages of a query."""

    system: str
    user: str


def render(
    role: Role,
    *,
    task_source: str,
    device: str,
    torch_version: str,
    tiers: Sequence[str],
    on_gpu: bool = False,
    parent_source: str | None = None,
    parent_summary: str | None = None,
    profile: Sequence[str] = (),
    idea: str | None = None,
    failure_status: str = "",
    failure_message: str = "",
    log_tail: str = "",
    failed_source: str | None = None,
    n_ideas: int = 10,
    history: Sequence[str] = (),
) -> Prompt:
    """The prompt of one query.

    `parent_source` is the correct program to start from (None: the reference) and
    `parent_summary` what was measured of it, such as "1.62x, tier tf32"; `profile` says in a few
    lines where its time (without a parent: the reference's) goes. `on_gpu` adds what a GPU asks
    of a program. The `failure_…` arguments say what became of the attempt to repair;
    `failed_source` is None where the answer held no program. `history` has one line for each
    program tried before.
    """
    task = _template("task").substitute(
        device=one_line(device, MAX_LINE_CHARS),
        torch_version=one_line(torch_version, MAX_LINE_CHARS),
        tiers=", ".join(tiers),
        device_rules=_template("cuda").substitute() if on_gpu else "",
        task_source=_program(task_source),
    )
    todo = _template(role.value).substitute(
        n_ideas=n_ideas,
        idea=f"\nThe idea to follow: {one_line(idea, 4 * MAX_LINE_CHARS)}\n" if idea else "",
        parent=_parent(parent_source, parent_summary),
        profile=_profile(profile, "the reference" if parent_source is None else "that program"),
        history=_history(history),
        failure_status=one_line(failure_status, MAX_LINE_CHARS),
        failure_message=_message(failure_message),
        log_tail=_log(log_tail),
        failed_source=_failed(failed_source),
    )
    return Prompt(system=_template("system").substitute(), user=task + todo)


@functools.cache
def _template(name: str) -> Template:
    return Template(
        resources.files("pike_hpc.proposers.agents").joinpath("prompts", f"{name}.md").read_text()
    )


@functools.lru_cache(maxsize=32)
def _program(source: str) -> str:
    """Remembered: the branches of a phase are shown the same task and few parents."""
    return fenced(head_and_tail(clean(source), MAX_SOURCE_CHARS), "python")


def _parent(source: str | None, summary: str | None) -> str:
    if source is None:
        return ""
    measured = f" Measured against the reference: {one_line(summary, 400)}." if summary else ""
    return (
        "\nStart from this correct program and make it faster still, or take from it what helps."
        f"{measured} Data:\n\n{_program(source)}\n"
    )


def _profile(lines: Sequence[str], whose: str) -> str:
    if not lines:
        return ""
    shown = "\n".join(one_line(line, MAX_LINE_CHARS) for line in lines[:MAX_PROFILE])
    title = f"Where a call of {whose} spends its time, by its own process, data:"
    return f"\n{title}\n\n{fenced(shown)}\n"


def _history(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = "\n".join(one_line(line, MAX_LINE_CHARS) for line in lines[:MAX_HISTORY])
    title = "What was tried before and how much faster than the reference it is, data:"
    return f"\n{title}\n\n{fenced(shown)}\n"


def _message(message: str) -> str:
    if not message:
        return ""
    return f"The judge's message, data:\n\n{fenced(one_line(message, 4 * MAX_LINE_CHARS))}\n"


def _log(log: str) -> str:
    text = clean(log).strip("\n")
    if not text:
        return ""
    return f"\nThe end of what it printed, data:\n\n{fenced(tail(text, MAX_LOG_CHARS))}\n"


def _failed(source: str | None) -> str:
    if source is None:
        return ""
    return f"\nThe failing program, data:\n\n{_program(source)}\n"
