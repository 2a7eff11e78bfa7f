"""Which jobs a run lacks: none is started twice, and none that is needed is left out."""

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.launch import Job, JobRecord, missing
from pike_hpc.slurm import JobState

LIVES = JobState(word="RUNNING", alive=True)
ENDED = JobState(word="TIMEOUT", alive=False)
SILENT = JobState(word="UNKNOWN", alive=None)


def plan(workers, agents):
    return tuple(
        tuple(Job(kind=kind, name=f"pike-{kind}-{n}", argv=("x",)) for n in range(count))
        for kind, count in (("worker", workers), ("agent", agents))
    )


def record(name, number=1):
    return JobRecord(
        job_id=str(number),
        kind=name.split("-")[1],
        name=name,
        launcher="slurm",
        host="h",
        submitted_at=1.0,
        argv=("x",),
    )


def none(agent):
    return False


def names(jobs):
    return [job.name for job in jobs]


def test_at_first_all_are_missing():
    found = missing(plan(2, 3), (), none)
    assert (len(found.workers), len(found.agents), found.kept) == (2, 3, ())


def test_what_lives_and_what_may_live_is_kept():
    known = (
        (record("pike-agent-0"), LIVES),
        (record("pike-agent-1"), SILENT),
        (record("pike-agent-2"), ENDED),
        (record("pike-worker-0"), ENDED),
        (record("pike-worker-1"), LIVES),
    )
    found = missing(plan(2, 3), known, none)
    assert names(found.agents) == ["pike-agent-2"]
    assert names(found.workers) == ["pike-worker-0"]
    assert [r.name for r, _ in found.kept] == ["pike-agent-0", "pike-agent-1", "pike-worker-1"]


def test_an_agent_that_ended_and_lives_again_is_kept():
    known = ((record("pike-agent-0"), ENDED), (record("pike-agent-0", 2), LIVES))
    assert missing(plan(0, 1), known, none).agents == ()


def test_an_agent_whose_tasks_are_finished_is_not_started():
    found = missing(plan(2, 3), (), lambda agent: agent.name == "pike-agent-1")
    assert names(found.agents) == ["pike-agent-0", "pike-agent-2"]
    assert names(found.idle) == ["pike-agent-1"]
    assert len(found.workers) == 2


def test_a_finished_run_wants_no_worker():
    found = missing(plan(2, 3), (), lambda agent: True)
    assert (found.workers, found.agents) == ((), ())


STATES = st.sampled_from([LIVES, ENDED, SILENT])
HISTORIES = st.lists(
    st.tuples(st.sampled_from(["worker", "agent"]), st.integers(0, 5), STATES), max_size=20
)


@given(st.integers(0, 4), st.integers(1, 4), HISTORIES, st.sets(st.integers(0, 4)))
def test_after_a_submit_the_next_one_starts_nothing(workers, agents, history, done):
    def finished(agent):
        return int(agent.name.rsplit("-", 1)[1]) in done

    known = tuple((record(f"pike-{kind}-{n}"), state) for kind, n, state in history)
    first = missing(plan(workers, agents), known, finished)
    started = tuple((record(job.name), LIVES) for job in (*first.workers, *first.agents))
    kept = sum(r.kind == "worker" for r, _ in first.kept)
    assert not first.workers or kept + len(first.workers) == workers
    second = missing(plan(workers, agents), known + started, finished)
    assert (second.workers, second.agents) == ((), ())
