"""An archive in PIKE's common folder layout, for tools written for PIKE's own runs.

`tasks/task<ID>/output/iter_output/iter_<K>/attempts/attempt_<M>/` with code.py, response.md
where a model wrote it, and metrics_artifacts.json. An iteration is a branch of a phase, an
attempt a repair round of it; a proposal without a branch is an iteration of its own. Prompts are
not written: a run keeps their digests only. `runtime` is the candidate's latency in ms
as the search measured it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pike_hpc.archive.body import to_bytes
from pike_hpc.archive.read import read
from pike_hpc.archive.record import QueryOutcome, StampedProposal, TaskRecord
from pike_hpc.journal import explain
from pike_hpc.records import EvalResult, EvalStatus, UsageError

_NOT_LOADED = (EvalStatus.BUILD_ERROR, EvalStatus.REJECTED)


def export_pike_layout(path: Path, out_dir: Path) -> Path:
    """Write the layout under out_dir/tasks and return that folder.

    Raises UsageError for an unreadable archive, or where out_dir/tasks exists already:
    attempts of two runs must not mix.
    """
    run = read(path)
    target = out_dir / "tasks"
    if target.exists():
        raise UsageError(
            "the folder holds an export already",
            where=str(target),
            valid="a folder without 'tasks' in it",
            fix="choose another folder",
        )
    used: set[str] = set()
    try:
        target.mkdir(parents=True)
        for task in run.tasks:
            _write_task(target / _folder_name(task, used) / "output", task)
    except OSError as error:
        raise explain(error, target, "write PIKE's layout") from None
    return target


def iterations(task: TaskRecord) -> tuple[tuple[StampedProposal, ...], ...]:
    """The proposals of a task grouped as PIKE counts them: per iteration, its attempts."""
    groups: dict[tuple[int, int, int], list[StampedProposal]] = {}
    for number, made in enumerate(task.proposals):
        p = made.proposal
        # Proposals without a branch come before every phase: rules seed a search.
        key = (-1, -1, number) if p.branch is None else (p.phase or 0, p.branch, 0)
        groups.setdefault(key, []).append(made)
    return tuple(
        tuple(sorted(groups[key], key=lambda made: made.proposal.round or 0))
        for key in sorted(groups)
    )


def _folder_name(task: TaskRecord, used: set[str]) -> str:
    """task<ID>, told apart by a number where suites or variants share ids."""
    base = "task" + re.sub(r"[^A-Za-z0-9_-]", "_", task.task.id)[:100]
    name, number = base, 1
    while name in used:
        number += 1
        name = f"{base}.{number}"
    used.add(name)
    return name


def _write_task(output: Path, task: TaskRecord) -> None:
    results = {final.result.candidate_id: final.result for final in task.results}
    answers = {
        query.node: query.text for query in task.queries if query.outcome is QueryOutcome.ANSWERED
    }
    ideas = [idea for stamped in task.ideas for idea in stamped.ideas.ideas]
    if ideas:
        (output / "ideas").mkdir(parents=True)
        (output / "ideas" / "ideas.json").write_text(json.dumps(ideas, indent=1) + "\n")
    for k, attempts in enumerate(iterations(task)):
        for m, made in enumerate(attempts):
            folder = output / "iter_output" / f"iter_{k}" / "attempts" / f"attempt_{m}"
            folder.mkdir(parents=True)
            candidate_id = made.proposal.candidate_id
            (folder / "code.py").write_bytes(to_bytes(task.sources[candidate_id]))
            if made.node in answers:
                (folder / "response.md").write_bytes(to_bytes(answers[made.node]))
            metrics = json.dumps(_metrics(results.get(candidate_id)), indent=1)
            (folder / "metrics_artifacts.json").write_text(metrics + "\n")


def _metrics(result: EvalResult | None) -> Mapping[str, Any]:
    """PIKE's record of an attempt; empty metrics mean that it failed or was never judged."""
    if result is None:
        return {"artifacts": {}, "metrics": {}}
    verdict: dict[str, Any] = {"loaded": result.status not in _NOT_LOADED}
    if result.correctness is not None:
        verdict["correct"] = result.status is EvalStatus.PASSED
        verdict["max_diff"] = [result.correctness.relative_error]
    metrics: dict[str, Any] = {}
    if result.timing is not None:
        verdict["runtime"] = metrics["runtime"] = result.timing.candidate_ms
    if result.simulated:
        metrics["simulated"] = True
    results = {
        "stdout": result.log_tail,
        "stderr": result.message,
        "eval_results": verdict,
        "timed_out": result.status is EvalStatus.TIMEOUT,
    }
    return {"artifacts": {"results": results}, "metrics": metrics}
