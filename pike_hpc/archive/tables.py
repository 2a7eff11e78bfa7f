"""The tables of an archive, for people with h5py, MATLAB or h5dump: what one filters and plots.

They are derived from /events, which alone is read back into records. Text is cut at 200 bytes,
NUL and lone surrogates are written as escapes; exact values are in the events. -1 in a column
of rows or counts means none, NaN in a column of numbers not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from pike_hpc.archive.elites import Elite
from pike_hpc.archive.record import QueryRecord, StampedProposal, StampedResult
from pike_hpc.records import EvalResult

TEXT_LIMIT = 200
"""Bytes of a text column."""

Columns = Sequence[tuple[str, str]]
"""Name and numpy type of each column; "text" for a fixed-width UTF-8 one."""

TASKS: Columns = (
    ("slug", "text"), ("task", "text"), ("digest", "text"), ("variant", "text"),
    ("device_kind", "text"), ("state", "text"), ("events", "<i8"),
)  # fmt: skip
EVENTS: Columns = (
    ("task", "<i8"), ("epoch", "<i8"), ("seq", "<i8"), ("time", "<f8"), ("kind", "text"),
    ("body", "<i8"), ("text", "<i8"),
)  # fmt: skip
CANDIDATES: Columns = (
    ("task", "<i8"), ("candidate_id", "text"), ("source", "<i8"), ("source_sha256", "text"),
)  # fmt: skip
PROPOSALS: Columns = (
    ("task", "<i8"), ("event", "<i8"), ("candidate", "<i8"), ("time", "<f8"), ("node", "text"),
    ("operator", "text"), ("candidate_id", "text"), ("parents", "<i8"), ("parent_id", "text"),
    ("branch", "<i8"), ("phase", "<i8"), ("round", "<i8"),
)  # fmt: skip
EVALUATIONS: Columns = (
    ("task", "<i8"), ("event", "<i8"), ("candidate", "<i8"), ("time", "<f8"),
    ("request_id", "text"), ("candidate_id", "text"), ("device_kind", "text"),
    ("image_digest", "text"), ("judge_version", "text"), ("status", "text"), ("tier", "text"),
    ("tags", "text"), ("speedup", "<f8"), ("ci95_low", "<f8"), ("ci95_high", "<f8"),
    ("candidate_ms", "<f8"), ("reference_ms", "<f8"), ("stock_best_ms", "<f8"),
    ("relative_error", "<f8"), ("limit", "<f8"), ("build_s", "<f8"), ("load_s", "<f8"),
    ("first_call_s", "<f8"), ("lane_s", "<f8"), ("isolation", "text"), ("simulated", "?"),
    ("log", "<i8"), ("retime", "<i8"),
)  # fmt: skip
"""A row for each verdict; `retime` 0 for the search's own."""
ELITES: Columns = (
    ("task", "<i8"), ("candidate", "<i8"), ("time", "<f8"), ("candidate_id", "text"),
    ("attempts", "<i8"), ("search_tier", "text"), ("search_speedup", "<f8"),
    ("search_ci95_low", "<f8"), ("search_ci95_high", "<f8"), ("status", "text"), ("tier", "text"),
    ("speedup", "<f8"), ("ci95_low", "<f8"), ("ci95_high", "<f8"), ("search_tags", "text"),
    ("tags", "text"),
)  # fmt: skip
"""A row for each candidate that was judged again; `status`, `tier`, `speedup` are what counts."""
QUERIES: Columns = (
    ("task", "<i8"), ("event", "<i8"), ("time", "<f8"), ("query_id", "text"), ("node", "text"),
    ("role", "text"), ("model", "text"), ("prompt_digest", "text"), ("outcome", "text"),
    ("input_tokens", "<i8"), ("cached_tokens", "<i8"), ("output_tokens", "<i8"),
    ("reasoning_tokens", "<i8"), ("cost_usd", "<f8"), ("latency_s", "<f8"), ("answer", "<i8"),
)  # fmt: skip

Row = tuple[Any, ...]


def proposal_row(task: int, event: int, candidate: int, stamped: StampedProposal) -> Row:
    """A row of PROPOSALS."""
    p = stamped.proposal
    numbers = (-1 if n is None else n for n in (p.branch, p.phase, p.round))
    first = p.parent_ids[0] if p.parent_ids else ""
    head = (task, event, candidate, stamped.time, stamped.node, p.operator, p.candidate_id)
    return (*head, len(p.parent_ids), first, *numbers)


def evaluation_row(task: int, event: int, candidate: int, log: int, final: StampedResult) -> Row:
    """A row of EVALUATIONS."""
    r, key = final.result, final.result.key
    timing, correctness = r.timing, r.correctness
    times = (
        (timing.speedup, *timing.ci95, timing.candidate_ms, timing.reference_ms,
         math.nan if timing.stock_best_ms is None else timing.stock_best_ms)
        if timing
        else (math.nan,) * 6
    )  # fmt: skip
    errors = (
        (correctness.relative_error, correctness.limit) if correctness else (math.nan, math.nan)
    )
    return (
        task, event, candidate, final.time, r.request_id, key.candidate_id, key.device_kind,
        key.image_digest, key.judge_version, r.status.value, r.tier.value if r.tier else "",
        ",".join(r.tags), *times, *errors, r.one_off.build_s, r.one_off.load_s,
        r.one_off.first_call_s, r.lane_s, r.isolation.level, r.simulated, log,
        key.retime,
    )  # fmt: skip


def elite_row(task: int, candidate: int, elite: Elite) -> Row:
    """A row of ELITES."""
    now, then = elite.retimed, elite.searched
    return (
        task, candidate, elite.time, now.candidate_id, elite.attempts, *_speed(then),
        now.status.value, *_speed(now), ",".join(then.tags) if then else "", ",".join(now.tags),
    )  # fmt: skip


def _speed(result: EvalResult | None) -> Row:
    """Tier, speedup and its interval."""
    timing = result.timing if result else None
    tier = result.tier.value if result and result.tier else ""
    return (tier, timing.speedup, *timing.ci95) if timing else (tier, *(math.nan,) * 3)


def query_row(task: int, event: int, answer: int, query: QueryRecord) -> Row:
    """A row of QUERIES."""
    used = query.usage
    tokens = (
        (used.input_tokens, used.cached_tokens, used.output_tokens, used.reasoning_tokens)
        if used
        else (0, 0, 0, 0)
    )
    return (
        task, event, query.time, query.query_id, query.node, query.role, query.model,
        query.prompt_digest, query.outcome.value, *tokens, query.cost_usd, query.latency_s, answer,
    )  # fmt: skip


def table(columns: Columns, rows: Iterable[Row]) -> npt.NDArray[Any]:
    """The rows as a structured array, text columns as wide as their longest entry."""
    texts = [i for i, (_, kind) in enumerate(columns) if kind == "text"]
    widths = dict.fromkeys(texts, 1)
    filled: list[Row] = []
    for row in rows:
        values = list(row)
        for i in texts:
            values[i] = plain(values[i])
            widths[i] = max(widths[i], len(values[i]))
        filled.append(tuple(_clamped(v) for v in values))
    dtype = np.dtype(
        [
            (name, h5py.string_dtype("utf-8", widths[i]) if kind == "text" else kind)
            for i, (name, kind) in enumerate(columns)
        ]
    )
    return np.array(filled, dtype=dtype)


def plain(text: str) -> bytes:
    """Text that HDF5 and every reader take: valid UTF-8 without NUL, at most 200 bytes."""
    data = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    return data[:TEXT_LIMIT].decode("utf-8", "ignore").encode()


def _clamped(value: Any) -> Any:
    """Integers as far as the columns go; a server may claim any number of tokens."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(value, 2**63 - 1))
    return value
