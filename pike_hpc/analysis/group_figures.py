"""The figures of a group, by name: where tables meet drawings."""

from __future__ import annotations

from collections.abc import Mapping

from pike_hpc.analysis import figures, frames
from pike_hpc.analysis.report import Group


def group_figures(group: Group) -> Mapping[str, str]:
    """Name to SVG text."""
    titles = {task.label: task.title for task in group.tasks}
    totals = {task.label: task.cost.evaluations for task in group.tasks}
    return {
        "trajectory": figures.trajectory(frames.trajectory(group.tasks), totals),
        "speedups": figures.speedups(frames.summary(group.tasks), titles),
        "statuses": figures.statuses(frames.statuses(group.tasks), titles),
    }
