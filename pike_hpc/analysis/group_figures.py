"""The figures of a group, by name: where tables meet drawings."""

from __future__ import annotations

from collections.abc import Mapping

from pike_hpc.analysis import figures, frames
from pike_hpc.analysis.report import Group


def group_figures(group: Group) -> Mapping[str, str]:
    """Name to SVG text; figures that would show nothing are not drawn."""
    titles = {task.label: task.title for task in group.tasks}
    totals = {task.label: task.cost.evaluations for task in group.tasks}
    drawn: dict[str, str] = {}
    if any(task.winners for task in group.tasks):
        counted = {task.label: totals[task.label] for task in group.counted}
        drawn["trajectory"] = figures.trajectory(frames.trajectory(group.counted), counted)
        drawn["speedups"] = figures.speedups(frames.summary(group.tasks), titles)
    if any(totals.values()):
        drawn["statuses"] = figures.statuses(frames.statuses(group.tasks), titles)
    return drawn
