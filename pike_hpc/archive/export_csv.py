"""The tables most people ask for, as comma-separated files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.archive.canonical import source_sha256
from pike_hpc.archive.read import read
from pike_hpc.archive.record import RunArchive
from pike_hpc.archive.tables import plain
from pike_hpc.journal import explain

Cell = str | int | float | bool | None

_EVALUATIONS = (
    "run_id", "task", "variant", "time", "candidate_id", "device_kind", "image_digest",
    "judge_version", "status", "tier", "tags", "speedup", "ci95_low", "ci95_high",
    "candidate_ms", "reference_ms", "device_ms", "stock_best_ms", "strict_fp32_ms", "windows",
    "relative_error", "limit", "build_s", "load_s", "first_call_s", "lane_s", "isolation",
    "simulated", "retime",
)  # fmt: skip
_CANDIDATES = (
    "run_id", "task", "variant", "time", "candidate_id", "source_sha256", "node", "operator",
    "parent_ids", "phase", "branch", "round",
)  # fmt: skip
_QUERIES = (
    "run_id", "task", "variant", "time", "query_id", "node", "role", "model", "outcome",
    "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_usd", "priced",
    "latency_s", "finish_reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTable:
    """A table without nesting. None: not measured, or there is none."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def flat_tables(path: Path) -> tuple[FlatTable, ...]:
    """Evaluations, candidates and queries of an archive. Raises UsageError where it is unreadable.

    Times are Unix seconds, *_ms and *_s as they say.
    """
    run = read(path)
    tables = (
        ("evaluations", _EVALUATIONS, _evaluations(run)),
        ("candidates", _CANDIDATES, _candidates(run)),
        ("queries", _QUERIES, _queries(run)),
    )
    return tuple(
        FlatTable(
            name=name, columns=columns, rows=tuple(tuple(map(_storable, row)) for row in rows)
        )
        for name, columns, rows in tables
    )


def export_csv(path: Path, out_dir: Path) -> tuple[Path, ...]:
    """Write evaluations.csv, candidates.csv (one row a proposal) and queries.csv.

    Returns their paths. Empty cells mean not measured. Times are Unix seconds, *_ms and *_s as
    they say. Raises UsageError for an unreadable archive or folder.
    """
    tables = flat_tables(path)
    written = []
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for table in tables:
            target = out_dir / f"{table.name}.csv"
            with target.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(table.columns)
                writer.writerows([_harmless(cell) for cell in row] for row in table.rows)
            written.append(target)
    except OSError as error:
        raise explain(error, out_dir, "write csv files") from None
    return tuple(written)


def _evaluations(run: RunArchive) -> Iterator[tuple[Cell, ...]]:
    for task in run.tasks:
        for final in (*task.results, *task.retimes):
            r, key, t = final.result, final.result.key, final.result.timing
            c = r.correctness
            times: tuple[Cell, ...] = (None,) * 9
            if t is not None:
                times = (
                    t.speedup, *t.ci95, t.candidate_ms, t.reference_ms, t.device_ms,
                    t.stock_best_ms, t.strict_fp32_ms, t.windows,
                )  # fmt: skip
            yield (
                run.run_id, task.task.key, task.task.variant.value, final.time, r.candidate_id,
                key.device_kind, key.image_digest, key.judge_version, r.status.value,
                r.tier.value if r.tier else None, " ".join(r.tags), *times,
                c.relative_error if c else None, c.limit if c else None, r.one_off.build_s,
                r.one_off.load_s, r.one_off.first_call_s, r.lane_s, r.isolation.level, r.simulated,
                key.retime,
            )  # fmt: skip


def _candidates(run: RunArchive) -> Iterator[tuple[Cell, ...]]:
    for task in run.tasks:
        for made in task.proposals:
            p = made.proposal
            yield (
                run.run_id, task.task.key, task.task.variant.value, made.time, p.candidate_id,
                source_sha256(task.sources[p.candidate_id]), made.node, p.operator,
                " ".join(p.parent_ids), p.phase, p.branch, p.round,
            )  # fmt: skip


def _queries(run: RunArchive) -> Iterator[tuple[Cell, ...]]:
    for task in run.tasks:
        for q in task.queries:
            used: tuple[Cell, ...] = (None,) * 4
            if q.usage:
                u = q.usage
                used = (u.input_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens)
            yield (
                run.run_id, task.task.key, task.task.variant.value, q.time, q.query_id, q.node,
                q.role, q.model, q.outcome.value, *used, q.cost_usd,
                q.usage.priced if q.usage else None, q.latency_s, q.finish_reason,
            )  # fmt: skip


def _storable(cell: Cell) -> Cell:
    """What every reader takes; a server may claim any number of tokens."""
    if isinstance(cell, str):
        return plain(cell).decode()
    if isinstance(cell, int) and not isinstance(cell, bool):
        return max(-(2**63), min(cell, 2**63 - 1))
    return cell


def _harmless(cell: Cell) -> Cell:
    return disarmed(cell) if isinstance(cell, str) else cell


def disarmed(text: str) -> str:
    """The text of a cell so that no spreadsheet runs it as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
