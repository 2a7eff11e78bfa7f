"""What a set of runs comes to: frozen records, the same for table, JSON and page.

Contract: `build` is pure and gives the same report for the same histories, whatever their
order. Numbers that are not comparable never share a mean: a group is one variant on one
device kind, and only admitted, really judged tasks make a headline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pike_hpc.analysis.history import RunHistory, TaskHistory, distinct, merge
from pike_hpc.analysis.metrics import (
    NOISY,
    Best,
    Cost,
    Selection,
    Step,
    baselines,
    best_per_tier,
    cost,
    over_stock,
    selection,
    status_counts,
    stock_speedup,
    trajectory,
)
from pike_hpc.analysis.summary import SelectionBias, TierSummary, selection_bias, summarise
from pike_hpc.records import EvalStatus, Tier, Variant

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run that went into the report."""

    run_id: str
    path: str
    created: str
    tasks: int
    evaluations: int
    simulated: bool
    states: tuple[str, ...]
    config_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One task on one device kind."""

    label: str
    """SUITE/ID with what makes it another problem: shape overrides, or another source."""
    title: str
    """Id and name in short, for lists under a heading that names the suite; the label where
    two tasks of a group would read alike."""
    name: str
    variant: Variant
    device: str
    simulated: bool
    status_counts: Mapping[EvalStatus, int]
    best: Mapping[Tier, Best | None]
    baselines: Mapping[str, Best]
    stock: Mapping[Tier, float | None]
    """Speedup over eager of the best stock setting of the tier."""
    over_stock: Mapping[Tier, float | None]
    trajectory: Mapping[Tier, tuple[Step, ...]]
    """Of the search, as it went."""
    selection: Selection
    cost: Cost
    history: TaskHistory

    @property
    def key(self) -> str:
        """SUITE/ID."""
        return self.history.task.key

    @property
    def undecided(self) -> bool:
        """Whether nobody knows: it was judged, and no verdict says anything about a candidate.

        So is every verdict on a task that the judge does not admit.
        """
        judged = (*self.history.verdicts, *self.history.retimes)
        return bool(judged) and not any(v.result.status.decides for v in judged)

    @property
    def headline(self) -> bool:
        """True where its numbers may stand in a headline."""
        admitted = self.variant is Variant.ADMITTED and not self.undecided
        return admitted and not self.simulated

    @property
    def winners(self) -> tuple[Best, ...]:
        """The strictest tier's best, then those of looser tiers that are faster still.

        One that was timed again follows one that was not, whatever its speed.
        """
        winners: list[Best] = []
        for tier in Tier:
            best = self.best[tier]
            if best is None:
                continue
            last = winners[-1] if winners else None
            if last is None or best.speedup > last.speedup or (best.retimed and not last.retimed):
                winners.append(best)
        return tuple(winners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tasks whose speedups may be averaged: one variant, one device kind, real or simulated."""

    variant: Variant
    device: str
    simulated: bool
    tiers: Mapping[Tier, TierSummary]
    selection: SelectionBias
    tasks: tuple[TaskReport, ...]

    @property
    def counted(self) -> tuple[TaskReport, ...]:
        """Those that may be in a mean: one that nobody could judge is neither won nor lost."""
        return tuple(task for task in self.tasks if not task.undecided)

    @property
    def headline(self) -> bool:
        """True where its means may stand in a headline."""
        admitted = self.variant is Variant.ADMITTED and bool(self.counted)
        return admitted and not self.simulated

    @property
    def suites(self) -> tuple[str, ...]:
        """Suites with their shape overrides, each once: they hold for many tasks."""
        return tuple(
            dict.fromkeys(
                _label(t.history).replace(f"/{t.history.task.id}", "", 1) for t in self.tasks
            )
        )

    @property
    def status_counts(self) -> Mapping[EvalStatus, int]:
        """Verdicts of each status over all tasks."""
        found = {s: sum(t.status_counts.get(s, 0) for t in self.tasks) for s in EvalStatus}
        return {status: n for status, n in found.items() if n}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is shown, and the histories it was computed from."""

    runs: tuple[RunLine, ...]
    tasks: tuple[TaskReport, ...]
    groups: tuple[Group, ...]
    cost: Cost
    notes: tuple[str, ...]
    """Sentences a reader must know before comparing numbers."""

    @property
    def headline(self) -> Group | None:
        """The headline group with the most tasks; the others stand beside it."""
        groups = [g for g in self.groups if g.headline]
        return max(groups, key=lambda g: len(g.counted), default=None)


def build(runs: Sequence[RunHistory]) -> Report:
    """The report over one or several runs."""
    runs = distinct(runs)
    histories = merge(runs)
    tasks = tuple(_task(history, histories) for history in histories)
    groups = _groups(tasks)
    return Report(
        runs=tuple(_run_line(run) for run in runs),
        tasks=tasks,
        groups=groups,
        cost=_total([t.cost for t in tasks]),
        notes=tuple(_notes(tasks)),
    )


def _run_line(run: RunHistory) -> RunLine:
    return RunLine(
        run_id=run.run_id,
        path=run.path,
        created=run.created,
        tasks=len(run.tasks),
        evaluations=sum(len(t.verdicts) for t in run.tasks),
        simulated=any(t.simulated for t in run.tasks),
        states=tuple(dict.fromkeys(t.state for t in run.tasks if t.state)),
        config_text=run.config_text,
    )


def _group_key(history: TaskHistory) -> tuple[Variant, str, bool]:
    return (history.task.variant, history.device_kind, history.simulated)


def _label(history: TaskHistory) -> str:
    overrides = ", ".join(f"{k}={v}" for k, v in sorted(history.task.shape_overrides.items()))
    return f"{history.task.key} ({overrides})" if overrides else history.task.key


def _title(history: TaskHistory) -> str:
    task = history.task
    name = task.name.removeprefix(f"{task.id}_")
    return name if name == task.id else f"{task.id} {name}"


def _task(history: TaskHistory, histories: Sequence[TaskHistory]) -> TaskReport:
    group = [h for h in histories if _group_key(h) == _group_key(history)]
    label, title = _label(history), _title(history)
    if [_label(h) for h in group].count(label) > 1:
        label = f"{label} @{history.task.digest[:8]}"
    if [_title(h) for h in group].count(title) > 1:
        title = label
    return TaskReport(
        label=label,
        title=title,
        name=history.task.name,
        variant=history.task.variant,
        device=history.device_kind,
        simulated=history.simulated,
        status_counts=status_counts(history),
        best=best_per_tier(history),
        baselines=baselines(history),
        stock={tier: stock_speedup(history, tier) for tier in Tier},
        over_stock={tier: over_stock(history, tier) for tier in Tier},
        trajectory={tier: trajectory(history, tier) for tier in Tier},
        selection=selection(history),
        cost=cost(history),
        history=history,
    )


def _groups(tasks: Sequence[TaskReport]) -> tuple[Group, ...]:
    members: dict[tuple[Variant, str, bool], list[TaskReport]] = {}
    for task in tasks:
        members.setdefault(_group_key(task.history), []).append(task)
    return tuple(
        Group(
            variant=variant,
            device=device,
            simulated=simulated,
            tiers={tier: _tier_summary(group, tier) for tier in Tier},
            selection=selection_bias(
                [ratio for task in group for ratio in task.selection.ratios],
                sum(task.selection.lost for task in group),
            ),
            tasks=tuple(group),
        )
        for (variant, device, simulated), group in members.items()
    )


def _tier_summary(group: Sequence[TaskReport], tier: Tier) -> TierSummary:
    group = [task for task in group if not task.undecided]
    best = {t.label: t.best[tier] for t in group}
    return summarise(
        {label: found.speedup if found else None for label, found in best.items()},
        {t.label: t.over_stock[tier] for t in group},
        {label for label, found in best.items() if found is not None and not found.retimed},
    )


def _total(costs: Sequence[Cost]) -> Cost:
    names = Cost.__dataclass_fields__
    return Cost(**{name: sum(getattr(c, name) for c in costs) for name in names})


def _notes(tasks: Sequence[TaskReport]) -> list[str]:
    notes = []
    if any(t.simulated for t in tasks):
        which = "no number is" if all(t.simulated for t in tasks) else "numbers so marked are not"
        notes.append(f"SIMULATED: verdicts were made up to walk through the program; {which} real.")
    if any(t.variant is Variant.LEGACY for t in tasks):
        notes.append(
            "LEGACY: PIKE's seeds, weights and acceptance rule; for comparison, never a headline."
        )
    loose = [t for t in tasks if any(not best.retimed for best in t.winners)]
    if loose:
        notes.append(
            f"*: {len(loose)} of {len(tasks)} tasks hold a best that was not timed again (the run "
            "was stopped, or is of an older version): the search's own value, too good on "
            "average; it is in no mean."
        )
    if any(best.noisy for task in tasks for best in task.winners):
        notes.append(
            f"{NOISY}: the machine was busy, such an interval may be wrong; judge it again with "
            "pike-hpc evaluate."
        )
    unknown = [t.label for t in tasks if t.undecided]
    if unknown:
        notes.append(
            f"not judged: {', '.join(unknown)}. No verdict there says anything about a candidate "
            "(the task was refused admission, or the judge could not decide); in no mean."
        )
    for task in tasks:
        keys = [v.result.key for v in task.history.verdicts]
        judges, images = {k.judge_version for k in keys}, {k.image_digest for k in keys}
        if len(judges) > 1 or len(images) > 1:
            notes.append(
                f"{task.label}: verdicts of {len(judges)} judge versions and {len(images)} images "
                "stand in one row; each speedup is over eager in its own image."
            )
        if task.label.endswith(f"@{task.history.task.digest[:8]}"):
            notes.append(f"{task.label}: its source differs between runs; compare with care.")
    return notes
