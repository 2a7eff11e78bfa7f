"""Whatever a journal holds, the archive holds exactly, and building it again changes no byte."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.archive import canonical, read, rebuild, verify
from pike_hpc.journal import TaskJournal, read_task
from pike_hpc.records import (
    Brainstormed,
    Correctness,
    Declined,
    Environment,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    Isolation,
    LegacyVerdicts,
    OneOff,
    Paused,
    Proposal,
    Proposed,
    QueryAnswered,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Requested,
    ResultKey,
    Task,
    TaskOpened,
    Tier,
    Timing,
    Usage,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
IDS = st.sampled_from(["c0", "c1", "c2"])
QUERY_IDS = st.sampled_from(["q0", "q1"])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(-(2**70), 2**70)
MAYBE_COUNT = st.none() | COUNTS
KEYS = st.builds(
    ResultKey,
    task_digest=TEXT,
    candidate_id=IDS,
    device_kind=TEXT,
    image_digest=TEXT,
    judge_version=TEXT,
)
CORRECTNESS = st.builds(
    Correctness,
    relative_error=NUMBERS,
    limit=NUMBERS,
    seeds=COUNTS,
    reference_precision=TEXT,
    legacy=st.builds(LegacyVerdicts, pike=st.booleans(), kernelbench=st.booleans()),
)
COMMON = {
    "key": KEYS,
    "tags": st.lists(TEXT, max_size=3).map(tuple),
    "one_off": st.builds(OneOff, build_s=NUMBERS, load_s=NUMBERS, first_call_s=NUMBERS),
    "isolation": st.builds(
        Isolation, level=TEXT, engine=TEXT, probes=st.dictionaries(TEXT, st.booleans())
    ),
    "message": TEXT,
    "log_tail": TEXT,
    "environment": st.builds(Environment, device=TEXT, host=TEXT),
    "lane_s": NUMBERS,
    "simulated": st.booleans(),
}
RESULTS = st.one_of(
    st.builds(
        EvalResult,
        status=st.just(EvalStatus.PASSED),
        tier=st.sampled_from(Tier),
        correctness=CORRECTNESS,
        timing=st.builds(
            Timing,
            candidate_ms=NUMBERS,
            reference_ms=NUMBERS,
            speedup=NUMBERS,
            ci95=st.tuples(NUMBERS, NUMBERS),
            windows=COUNTS,
            stock_best_ms=st.none() | NUMBERS,
        ),
        **COMMON,
    ),
    st.builds(
        EvalResult,
        status=st.sampled_from([s for s in EvalStatus if s is not EvalStatus.PASSED]),
        correctness=st.none() | CORRECTNESS,
        **COMMON,
    ),
)
USAGE = st.builds(
    Usage,
    model=TEXT,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    cost_usd=NUMBERS,
    priced=st.booleans(),
)
PROPOSALS = st.builds(
    Proposal,
    candidate_id=IDS,
    operator=TEXT,
    parent_ids=st.lists(IDS, max_size=2).map(tuple),
    branch=MAYBE_COUNT,
    phase=MAYBE_COUNT,
    round=MAYBE_COUNT,
    note=TEXT,
)
TASKS = st.builds(
    Task,
    suite=TEXT,
    id=TEXT,
    name=TEXT,
    source=TEXT,
    shape_overrides=st.dictionaries(TEXT, COUNTS, max_size=2),
)
EVENTS = st.one_of(
    st.builds(TaskOpened, task=TASKS, device_kind=TEXT),
    st.builds(
        QueryReserved,
        query_id=QUERY_IDS,
        node=TEXT,
        role=TEXT,
        model=TEXT,
        prompt_digest=TEXT,
        max_cost_usd=NUMBERS,
    ),
    st.builds(QueryAnswered, query_id=QUERY_IDS, text=TEXT, finish_reason=TEXT, usage=USAGE),
    st.builds(QueryFailed, query_id=QUERY_IDS, kind=TEXT, message=TEXT, charged=st.booleans()),
    st.builds(QueryLost, query_id=QUERY_IDS),
    st.builds(Brainstormed, node=TEXT, ideas=st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Proposed, node=TEXT, proposal=PROPOSALS, source=TEXT),
    st.builds(Declined, node=TEXT, operator=TEXT, reason=TEXT),
    st.builds(Requested, request_id=TEXT, candidate_id=IDS),
    st.builds(Evaluated, result=RESULTS),
    st.builds(Paused, reason=TEXT, exit_code=COUNTS),
    st.builds(Finished, reason=TEXT),
)
JOURNALS = st.dictionaries(
    st.sampled_from(["s_1", "s_2", "s_3"]),
    st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=3),
    min_size=1,
)


@settings(max_examples=50)
@given(JOURNALS, st.binary(max_size=50), NUMBERS)
def test_an_archive_is_exactly_its_journal(journals, config, time):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        (run / "run.yaml").write_bytes(config)
        for slug, lives in journals.items():
            for events in lives:
                with TaskJournal.open(run, slug, writer="w", seed=0, clock=lambda: time) as journal:
                    for event in events:
                        journal.append(event, durable=False)
        path = rebuild(run)
        assert verify(path) == ()
        archive = read(path)
        for task in archive.tasks:
            assert task.events == read_task(run, task.slug)
            assert [s.result for s in task.results] == [
                s.event.result for s in task.events if isinstance(s.event, Evaluated)
            ]
            assert [s.proposal for s in task.proposals] == [
                s.event.proposal for s in task.events if isinstance(s.event, Proposed)
            ]
        opened = {
            slug
            for slug, lives in journals.items()
            if any(isinstance(event, TaskOpened) for events in lives for event in events)
        }
        assert {task.slug for task in archive.tasks} == opened
        text, image = canonical(path), path.read_bytes()
        assert rebuild(run).read_bytes() == image
        assert canonical(path) == text
