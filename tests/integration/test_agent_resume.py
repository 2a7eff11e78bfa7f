"""Killed after any event, a search goes on as if nothing had happened.

A whole search is run once; then its journal is cut after every single event, as kill -9 would
leave it, and a new controller finishes it. The canonical text must be the same, and so must what
was timed again and what came of it; no journalled verdict may be judged again, and only queries
in flight may be asked again.
"""

import shutil

import pytest
from builders.searches import task_setup

from pike_hpc.agent import AgentOptions, Controller, Models, Seat, run_agent
from pike_hpc.archive import canonical, rebuild
from pike_hpc.journal import TaskJournal, read_task, task_slug
from pike_hpc.llm import ScriptedModel, load_script
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import (
    EvalRequest,
    Evaluated,
    Finished,
    QueryAnswered,
    QueryFailed,
    QueryReserved,
    Role,
    Tier,
)
from pike_hpc.search import Limits, make_strategy
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

TASK = find_task("level3-pike/4")
SLUG = task_slug(TASK.key)
DEVICE = "cpu"
LIMITS = Limits(queries=12, evaluations=20)
PORTFOLIO = (
    ("identity",),
    ("fold_batch_norm",),  # declined: LeNet has none
    ("channels_last",),
    ("compile_default",),
    ("channels_last", "compile_default"),
)


class CountingJudge:
    """The simulated judge, and what it was asked."""

    def __init__(self):
        self.judged = []
        self._judge = SimulatedJudge(device_kind=DEVICE, seed=3)

    def evaluate(self, request: EvalRequest):
        self.judged.append(request.request_id)
        return self._judge.evaluate(request, lambda _: None)


def sit(run_dir, strategy, *, judge, mailbox=None):
    """One sitting of an agent, to the end."""
    mailbox = mailbox or MemoryMailbox()
    models = None
    if strategy != "rules":
        model = ScriptedModel(load_script("default"))
        seat = Seat(model=model, temperature=0.8, max_output_tokens=1000)
        models = Models({role: seat for role in Role}, tuple(Tier))
    journal = TaskJournal.open(run_dir, SLUG, writer="test", seed=0, clock=lambda: 0.0)
    controller = Controller(setup(strategy), journal, mailbox, models)

    def work(_seconds):
        for claim in mailbox.claim("w", frozenset([DEVICE]), limit=5):
            mailbox.judging(claim)
            mailbox.commit(claim, judge.evaluate(claim.request))

    try:
        outcome = run_agent(
            [controller],
            AgentOptions(in_flight=2),
            clock=lambda: 0.0,
            sleep=work,
            stopping=lambda: False,
        )
    finally:
        controller.close()
        if models is not None:
            models.close()
    assert outcome.finished, outcome
    return controller.view


def setup(strategy):
    made = make_strategy(
        strategy,
        options={} if strategy == "rules" else {"branches": 3, "fix_attempts": 1},
        seed=0,
        limits=LIMITS,
        portfolio=PORTFOLIO,
        has_model=strategy != "rules",
    )
    return task_setup(TASK, made, LIMITS, DEVICE)


def archive_text(run_dir):
    (run_dir / "run.yaml").write_text("run_version: 1\n")
    return canonical(rebuild(run_dir))


def timed_again(run_dir):
    """Everything that was judged again, by request, and the place that each holds."""
    events = [s.event for s in read_task(run_dir, SLUG)]
    results = [e.result for e in events if isinstance(e, Evaluated) and e.result.key.retime]
    assert len({r.request_id for r in results}) == len(results)
    return {r.request_id: (r.status, r.timing) for r in results}


def only_segment(run_dir):
    (segment,) = (run_dir / "journal").glob("*.jsonl")
    return segment


@pytest.mark.parametrize("strategy", ["rules", "default"])
def test_a_cut_after_any_event_changes_nothing(tmp_path, strategy):
    whole = tmp_path / "whole"
    sit(whole, strategy, judge=CountingJudge())
    wanted = archive_text(whole)
    lines = only_segment(whole).read_bytes().splitlines(keepends=True)
    assert len(lines) > 12
    assert b'"SearchEnded"' in b"".join(lines)
    best = timed_again(whole)
    assert best
    ended = next(i for i, line in enumerate(lines) if b'"SearchEnded"' in line)
    searching = range(1, ended, 1 if strategy == "rules" else 4)
    for cut in (*searching, *range(ended, len(lines))):
        run_dir = tmp_path / f"cut{cut}"
        shutil.copytree(whole / "journal", run_dir / "journal")
        only_segment(run_dir).write_bytes(b"".join(lines[:cut]))
        before = [s.event for s in read_task(run_dir, SLUG)]
        judge = CountingJudge()
        view = sit(run_dir, strategy, judge=judge)

        known = {e.result.request_id for e in before if type(e).__name__ == "Evaluated"}
        assert not known & set(judge.judged), "a journalled verdict was judged again"
        assert len(set(judge.judged)) == len(judge.judged)
        open_queries = {e.query_id for e in before if isinstance(e, QueryReserved)}
        open_queries -= {e.query_id for e in before if isinstance(e, QueryAnswered)}
        after = [s.event for s in read_task(run_dir, SLUG)]
        lost = {e.query_id for e in after if isinstance(e, QueryFailed) and e.kind == "lost"}
        assert lost == open_queries, "exactly the queries in flight are lost"
        assert view.spent.queries <= LIMITS.queries
        assert view.spent.evaluations <= LIMITS.evaluations
        assert archive_text(run_dir) == wanted
        assert timed_again(run_dir) == best


def test_a_verdict_left_in_the_mailbox_by_a_dead_agent_is_not_paid_twice(tmp_path):
    mailbox, judge = MemoryMailbox(), CountingJudge()
    whole = tmp_path / "run"
    sit(whole, "rules", judge=judge, mailbox=MemoryMailbox())
    lines = only_segment(whole).read_bytes().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if b'"Requested"' in line) + 1
    only_segment(whole).write_bytes(b"".join(lines[:cut]))
    requested = [s.event for s in read_task(whole, SLUG)][-1]

    first = CountingJudge()
    journal = TaskJournal.open(whole, SLUG, writer="dies", seed=0, clock=lambda: 0.0)
    Controller(setup("rules"), journal, mailbox, None)
    journal.close()
    (claim,) = mailbox.claim("w", frozenset([DEVICE]))
    mailbox.judging(claim)
    mailbox.commit(claim, first.evaluate(claim.request))

    second = CountingJudge()
    view = sit(whole, "rules", judge=second, mailbox=mailbox)
    assert first.judged == [requested.request_id]
    assert requested.request_id not in second.judged
    assert view.finished is not None
    events = [s.event for s in read_task(whole, SLUG)]
    assert sum(isinstance(e, Finished) for e in events) == 1
