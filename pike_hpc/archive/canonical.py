"""An archive as text in which only what must not differ is left.

Two runs with the same seed and the same answers give the same text byte for byte, however often
one of them was killed and continued: no clocks, hosts, processes, measured times or errors,
no verdicts on candidates judged again (measured times say which those are), costs of retries, log
tails, epochs or writers; everything sorted by what identifies it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pike_hpc.archive.body import to_bytes
from pike_hpc.archive.read import read
from pike_hpc.archive.record import QueryOutcome, RunArchive, StampedResult, TaskRecord
from pike_hpc.records import EvalResult

CANONICAL_VERSION = 1
"""Raised when the same run would give another text."""

UNREPEATABLE_TAGS = frozenset({"early_stop", "noisy", "nondeterministic", "uneven"})
"""Tags that a clock or a race between threads gives: the same candidate may not earn them again."""


def canonical(path: Path) -> str:
    """The canonical text of an archive: ASCII, a header line, then one JSON object a line."""
    return canonical_text(read(path))


def canonical_text(archive: RunArchive) -> str:
    """The canonical text of a run."""
    lines = [f"# pike-hpc canonical {CANONICAL_VERSION}"]
    for task in sorted(archive.tasks, key=lambda t: (t.task.key, t.task.digest, t.slug)):
        lines.append(
            _line("task", key=task.task.key, digest=task.task.digest, variant=task.task.variant)
        )
        for section in (_candidates, _proposals, _declined, _verdicts, _ideas, _queries):
            lines += sorted(section(task))
    return "\n".join(lines) + "\n"


def _candidates(task: TaskRecord) -> Iterator[str]:
    for candidate_id, source in task.sources.items():
        yield _line("candidate", id=candidate_id, sha256=source_sha256(source), source=source)


def _proposals(task: TaskRecord) -> Iterator[str]:
    for made in task.proposals:
        p = made.proposal
        yield _line(
            "proposal",
            node=made.node,
            candidate=p.candidate_id,
            operator=p.operator,
            parents=list(p.parent_ids),
            phase=p.phase,
            branch=p.branch,
            round=p.round,
        )


def _declined(task: TaskRecord) -> Iterator[str]:
    for stamped in task.declined:
        yield _line("declined", node=stamped.declined.node, operator=stamped.declined.operator)


def _verdicts(task: TaskRecord) -> Iterator[str]:
    final: dict[str, EvalResult] = {}
    for stamped in sorted(task.results, key=_undecided):
        final.setdefault(stamped.result.request_id, stamped.result)
    for result in final.values():
        key, correctness = result.key, result.correctness
        yield _line(
            "verdict",
            candidate=key.candidate_id,
            device_kind=key.device_kind,
            image=key.image_digest,
            judge=key.judge_version,
            status=result.status,
            tier=result.tier,
            tags=sorted(set(result.tags) - UNREPEATABLE_TAGS),
            legacy=[correctness.legacy.pike, correctness.legacy.kernelbench]
            if correctness
            else None,
            simulated=result.simulated,
        )


def _undecided(stamped: StampedResult) -> bool:
    """Sorts verdicts that were asked for again behind those that hold, order kept."""
    return not stamped.result.status.decides


def _ideas(task: TaskRecord) -> Iterator[str]:
    for stamped in task.ideas:
        yield _line("ideas", node=stamped.ideas.node, ideas=list(stamped.ideas.ideas))


def _queries(task: TaskRecord) -> Iterator[str]:
    for query in task.queries:
        if query.outcome is QueryOutcome.ANSWERED:
            yield _line(
                "query",
                node=query.node,
                role=query.role,
                model=query.model,
                prompt=query.prompt_digest,
                answer=source_sha256(query.text),
                outcome=query.outcome,
            )


def _line(kind: str, **values: Any) -> str:
    """One object, its kind and identity first so that sorting lines sorts by identity."""
    return json.dumps({"is": kind, **values}, separators=(",", ":"), ensure_ascii=True)


def source_sha256(text: str) -> str:
    """Hex digest of a text's exact bytes."""
    return hashlib.sha256(to_bytes(text)).hexdigest()
