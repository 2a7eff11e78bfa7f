"""Snapshot: a view as JSON, so that it need not be replayed from the first event on.

Contract: `from_snapshot(to_snapshot(view))` equals the view, and so does whatever is replayed on
both. Sources and whole results are not in it: whoever makes a snapshot knows where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from pike_hpc.records import (
    EvalResult,
    Proposal,
    Task,
    decode,
    encode,
    from_columns,
    to_columns,
)
from pike_hpc.search.query import OpenQuery, Query
from pike_hpc.search.verdict import Verdict
from pike_hpc.search.view import Outcome, TaskView

_AS_THEY_ARE = ("device_kind", "seed", "lane_s", "ended", "finished", "paused")
_MAPPINGS = ("requested", "unjudged", "retimes_asked", "retiming")


def to_snapshot(view: TaskView) -> dict[str, Any]:
    """A view without its sources and results, for `json.dumps`."""
    return {
        "task": encode(view.task),
        "outcomes": _table(Outcome, view.outcomes),
        "proposals": _table(Proposal, view.proposals),
        "verdicts": _table(Verdict, view.verdicts),
        "queries": _table(Query, view.queries),
        "open_queries": [encode(asked) for asked in view.open_queries.values()],
        "retimed": [
            [candidate_id, attempt, encode(result)]
            for candidate_id, again in view.retimed.items()
            for attempt, result in again.items()
        ],
        **{name: getattr(view, name) for name in (*_AS_THEY_ARE, *_MAPPINGS)},
    }


def from_snapshot(
    data: Mapping[str, Any],
    sources: MutableMapping[str, str],
    results: MutableMapping[str, EvalResult],
) -> TaskView:
    """The view, with the sources and results that belong to it. Raises CodecError, KeyError."""
    view = TaskView(sources=sources, results=results)
    view.task = decode(Task, data["task"]) if data["task"] is not None else None
    for name in (*_AS_THEY_ARE, *_MAPPINGS):
        setattr(view, name, data[name])
    view.outcomes = _untable(Outcome, data["outcomes"])
    view.proposals = _untable(Proposal, data["proposals"])
    view.verdicts = _untable(Verdict, data["verdicts"])
    view.queries = _untable(Query, data["queries"])
    for each in data["open_queries"]:
        asked = decode(OpenQuery, each)
        view.open_queries[asked.reserved.query_id] = asked
    for candidate_id, attempt, result in data["retimed"]:
        view.retimed.setdefault(candidate_id, {})[attempt] = decode(EvalResult, result)
    view.requested_candidates = set(view.requested.values())
    for node, proposal in view.proposals.items():
        view.nodes_of.setdefault(proposal.candidate_id, []).append(node)
    _index_queries(view)
    return view


def _index_queries(view: TaskView) -> None:
    for query_id, query in view.queries.items():
        view.queries_of.setdefault(query.node, []).append(query_id)
        view.charged_queries += query.charged


def _table(kind: type, records: Mapping[str, Any]) -> list[Any]:
    return [list(records), to_columns(kind, list(records.values()))]


def _untable(kind: type, table: Iterable[Any]) -> dict[str, Any]:
    names, columns = table
    return dict(zip(names, from_columns(kind, columns), strict=True))
