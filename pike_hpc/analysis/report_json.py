"""The report as JSON: the shape that docs/report.md tells of.

More keys may come; none goes without a new schema_version. Knows no archive and no page.
"""

from __future__ import annotations

import json
from typing import Any

from pike_hpc.analysis.metrics import STRICT_RULE, Best, Cost
from pike_hpc.analysis.report import SCHEMA_VERSION, Group, Report, TaskReport
from pike_hpc.analysis.summary import Mean, TierSummary
from pike_hpc.records import Tier, encode


def report_json(report: Report) -> str:
    """Indented JSON, ASCII only, finite numbers only, ending in a newline."""
    return json.dumps(report_object(report), indent=1, allow_nan=False) + "\n"


def report_object(report: Report) -> dict[str, Any]:
    """The JSON value of a report."""
    headline = report.headline
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [
            {
                "run": run.run_id,
                "path": run.path,
                "created": run.created,
                "tasks": run.tasks,
                "evaluations": run.evaluations,
                "simulated": run.simulated,
                "states": list(run.states),
            }
            for run in report.runs
        ],
        "tasks": [_task(task) for task in report.tasks],
        "geomean": {
            tier.value: _geomean(headline.tiers[tier] if headline else None) for tier in Tier
        },
        "geomean_device": headline.device if headline else None,
        "selection_bias": encode(headline.selection) if headline else None,
        "groups": [_group(group) for group in report.groups],
        "cost": _cost(report.cost),
        "notes": list(report.notes),
    }


def _task(task: TaskReport) -> dict[str, Any]:
    return {
        "task": task.key,
        "label": task.label,
        "name": task.name,
        "task_digest": task.history.task.digest,
        "variant": task.variant.value,
        "device": task.device,
        "simulated": task.simulated,
        "headline": task.headline,
        "state": task.history.state,
        "runs": list(task.history.run_ids),
        "status_counts": {status.value: n for status, n in task.status_counts.items()},
        "best": {tier.value: _best_of(task, tier) for tier in Tier},
        "selection": encode(task.selection),
        "baselines": {name: _best(best) for name, best in task.baselines.items()},
        "stock_speedup": {tier.value: task.stock[tier] for tier in Tier},
        "over_stock": {tier.value: task.over_stock[tier] for tier in Tier},
        "declined": [{"operator": d.operator, "reason": d.reason} for d in task.history.declined],
        "trajectory": {
            tier.value: [encode(step) for step in task.trajectory[tier]] for tier in Tier
        },
        **_cost(task.cost),
    }


def _best_of(task: TaskReport, tier: Tier) -> dict[str, Any] | None:
    """A tier's best beside its denominators, in ms of the judging that gave its own time."""
    best = task.best[tier]
    fields = _best(best)
    if best is None or fields is None:
        return None
    stock, strict = task.stock[tier], task.baselines.get(STRICT_RULE)
    fields["stock_best_ms"] = best.reference_ms / stock if stock else None
    fields["strict_fp32_ms"] = best.reference_ms / strict.speedup if strict else None
    if task.device == "cpu":  # it has no TF32
        fields["strict_fp32_ms"] = best.reference_ms
    return fields


def _best(best: Best | None) -> dict[str, Any] | None:
    if best is None:
        return None
    fields: dict[str, Any] = encode(best)
    del fields["source"]
    return fields


def _cost(cost: Cost) -> dict[str, Any]:
    fields: dict[str, Any] = encode(cost)
    return fields


def _group(group: Group) -> dict[str, Any]:
    return {
        "variant": group.variant.value,
        "device": group.device,
        "simulated": group.simulated,
        "headline": group.headline,
        "tasks": [task.label for task in group.tasks],
        "geomean": {tier.value: _geomean(group.tiers[tier]) for tier in Tier},
        "selection_bias": encode(group.selection),
    }


def _geomean(summary: TierSummary | None) -> dict[str, Any]:
    if summary is None:
        return {"unclamped": None, "clamped": None, "over_stock": None}
    means = {
        "unclamped": summary.unclamped,
        "clamped": summary.clamped,
        "over_stock": summary.over_stock,
    }
    return {
        **{name: _value(mean) for name, mean in means.items()},
        "ci95": {name: list(m.ci95) if m and m.ci95 else None for name, m in means.items()},
        "tasks": summary.tasks,
        "tasks_over_stock": summary.over_stock.tasks if summary.over_stock else 0,
        "without_correct": list(summary.without_correct),
        "slower": list(summary.slower),
        "not_retimed": list(summary.not_retimed),
        "fast_p": {f"{p:g}": share for p, share in summary.fast_p.items()},
    }


def _value(mean: Mean | None) -> float | None:
    return mean.value if mean else None
