"""What `pike-hpc baselines` judges: for each task its stock settings, then the solutions for it.

A setting is made by rules, so that it is exactly what the search's own controls are. No torch,
and nothing is executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pike_hpc.cli.candidate_file import read_candidate
from pike_hpc.cli.solutions import Matched, Solution
from pike_hpc.proposers.rules import DeclinedByRule, Toolchain, rewrite
from pike_hpc.records import Task, UsageError, did_you_mean
from pike_hpc.tasks import effective_source

EAGER, STRICT = "eager", "strict-fp32"
MODES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    EAGER: (("identity",),),
    STRICT: (("strict_fp32",),),
    "compile": (("compile_default",),),
    "reduce-overhead": (("compile_reduce_overhead",),),
    "max-autotune": (("compile_max_autotune",),),
    "half": (("half_body",),),
    "half-graphs": (
        ("channels_last", "half_body", "compile_reduce_overhead"),
        ("half_body", "compile_reduce_overhead"),
    ),
    "tensorrt": (("compile_tensorrt",),),
}
"""Name of a stock setting to compositions of rules; the first that applies to a task is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One program for one task, or the reason why there is none."""

    task: Task
    setting: str
    """A mode's name, or a folder of solutions as the user named it."""
    file: str | None = None
    """Of a solution: its path below the folder."""
    rules: tuple[str, ...] = ()
    """Of a mode."""
    source: str | None = None
    declined: str | None = None
    """Why it isn't judged: a setting that does not apply here, or an unreadable file."""

    @property
    def label(self) -> str:
        """What is judged, for a person."""
        return self.file or self.setting

    def refused(self, reason: str) -> Entry:
        """The same, not judged."""
        return dataclasses.replace(self, source=None, declined=reason)


def parse_modes(text: str, *, folders: bool) -> tuple[str, ...]:
    """The modes in `all`, `none` or a list with commas, in the order of MODES.

    Raises:
        UsageError: no such mode, or none and no folder of solutions either.
    """
    if text == "none":
        if not folders:
            raise UsageError("--modes none leaves nothing to judge", fix="add --solutions DIR")
        return ()
    named = [name.strip() for name in text.split(",")]
    if named == ["all"]:
        return tuple(MODES)
    for name in named:
        if name not in MODES:
            raise UsageError(
                f"no mode {name!r}",
                valid=f"all, none, {', '.join(MODES)}",
                fix=did_you_mean(name, MODES),
            )
    return tuple(name for name in MODES if name in named)


def plan(
    tasks: Sequence[Task],
    modes: Sequence[str],
    folders: Sequence[Matched],
    *,
    toolchain: Toolchain,
    device_kind: str,
) -> tuple[Entry, ...]:
    """Task by task, because the judge keeps few tasks warm."""
    entries: list[Entry] = []
    for task in tasks:
        entries += [_mode(task, name, toolchain, device_kind) for name in modes]
        for folder in folders:
            mine = [s for s in folder.solutions if s.task.key == task.key]
            entries += [_solution(task, str(folder.folder), solution) for solution in mine]
    return tuple(entries)


def _mode(task: Task, name: str, toolchain: Toolchain, device_kind: str) -> Entry:
    reason = ""
    for rules in MODES[name]:
        made = rewrite(
            effective_source(task),
            rules,
            toolchain=toolchain,
            device_kind=device_kind,
            task_name=task.key,
        )
        if not isinstance(made, DeclinedByRule):
            return Entry(task=task, setting=name, rules=rules, source=made.source)
        reason = made.reason
    return Entry(task=task, setting=name, rules=MODES[name][-1], declined=reason)


def _solution(task: Task, folder: str, solution: Solution) -> Entry:
    entry = Entry(task=task, setting=folder, file=solution.label)
    try:
        return dataclasses.replace(entry, source=read_candidate(solution.path))
    except UsageError as error:
        return entry.refused(error.what)
