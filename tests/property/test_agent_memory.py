"""From a snapshot and what follows it comes the view that all events give, whatever happened."""

import os
import tempfile
from pathlib import Path

from builders.queries import answered, proposed, reserved
from builders.results import key_of, passed
from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.agent.memory import Memory, made_by
from pike_hpc.journal import OsDisk, TaskJournal, read_task
from pike_hpc.records import (
    Brainstormed,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    Paused,
    QueryFailed,
    QueryLost,
    Requested,
    SearchEnded,
    Task,
    TaskOpened,
    Tier,
)
from pike_hpc.search import replay

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")
NODES = st.sampled_from(["ideas", "rule/a", "p0/b0/r0", "p0/b1/r0", "p1/b0/r0"])
CANDIDATES = st.sampled_from(["c1", "c2", "c3"])
QUERIES = st.sampled_from(["q1", "q2", "q3", "q4"])
TEXT = st.sampled_from(["", "plain", "caf\u00e9", "\ud800 torn", "line\nline"])
STATUSES = st.sampled_from(
    [EvalStatus.PASSED, EvalStatus.WRONG_RESULT, EvalStatus.JUDGE_ERROR, EvalStatus.WORKER_LOST]
)


@st.composite
def evaluated(draw):
    retime = draw(st.sampled_from([0, 0, 0, 1, 2]))
    task = draw(st.sampled_from([TASK.digest, TASK.digest, "another"]))
    key = key_of(task, draw(CANDIDATES), retime=retime)
    status, tags = draw(STATUSES), draw(st.sampled_from([(), ("noisy",)]))
    if status is EvalStatus.PASSED:
        tier = draw(st.sampled_from(list(Tier)))
        return Evaluated(result=passed(key, draw(st.floats(0.5, 4)), tier=tier, tags=tags))
    message = draw(st.text(max_size=5))
    return Evaluated(result=EvalResult(key=key, status=status, lane_s=0.1, message=message))


@st.composite
def requested(draw):
    candidate_id, retime = draw(CANDIDATES), draw(st.sampled_from([0, 0, 1]))
    request_id = key_of(TASK.digest, candidate_id, retime=retime).request_id
    return Requested(request_id=request_id, candidate_id=candidate_id, retime=retime)


EVENTS = st.one_of(
    st.builds(reserved, QUERIES, NODES, usd=st.floats(0, 1)),
    st.builds(answered, QUERIES, TEXT, usd=st.floats(0, 1)),
    st.builds(QueryFailed, query_id=QUERIES, kind=TEXT, message=TEXT, charged=st.booleans()),
    st.builds(QueryLost, query_id=QUERIES),
    st.builds(Brainstormed, node=NODES, ideas=st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Declined, node=NODES, operator=TEXT, reason=TEXT),
    st.builds(proposed, NODES, CANDIDATES, TEXT, note=TEXT, phase=st.none() | st.integers(0, 2)),
    requested(),
    evaluated(),
    st.builds(Paused, reason=TEXT),
    st.builds(SearchEnded, reason=TEXT),
    st.builds(Finished, reason=TEXT),
)
LIVES = st.lists(
    st.tuples(
        st.lists(EVENTS, max_size=12),
        st.integers(1, 8),  # events after which a snapshot is worth it
        st.sampled_from(["closed", "killed", "torn"]),
    ),
    min_size=2,
    max_size=5,
)


class QuickDisk(OsDisk):
    """Nothing here loses power."""

    def sync(self, fd):
        pass

    def sync_folder(self, folder):
        pass


def open_journal(run):
    return TaskJournal.open(
        run, "t", writer="w", seed=0, clock=lambda: 0.0, made_by=made_by(), disk=QuickDisk()
    )


def as_read(run):
    return replay(stamped.event for stamped in read_task(run, "t"))


def tear(run):
    """The newest segment loses its end, as after a power failure on a disk that lied."""
    newest = max((run / "journal").glob("*.jsonl"))
    os.truncate(newest, max(newest.stat().st_size - 30, 0))


@settings(max_examples=120)
@given(LIVES)
def test_a_view_from_a_snapshot_is_the_view_of_all_events(lives):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        for events, worth, end in lives:
            journal = open_journal(run)
            memory = Memory(journal, worth=worth)
            if memory.view.task is None:
                memory.write(TaskOpened(task=TASK, device_kind="cpu"))
            assert memory.view == as_read(run)
            for event in events:
                memory.write(event, durable=False)
            memory.sync()
            assert memory.view == as_read(run), "what is read back is what was written"
            if end == "closed":
                memory.close()
            else:
                journal.close()
            if end == "torn":
                tear(run)
        with open_journal(run) as journal:
            assert Memory(journal, worth=1).view == as_read(run)
        with open_journal(run) as journal:
            assert journal.snapshot is not None
            assert Memory(journal).view == as_read(run)
