"""How many workers are started again: while work waits, within what a person granted."""

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.launch import Grant, JobRecord, read_grant, share, top_up, used_hours, write_grant
from pike_hpc.launch.wave import drop_grant
from pike_hpc.slurm import JobState

LIVES = JobState(word="RUNNING", alive=True)
LEFT = JobState(word="COMPLETED", alive=False)
FAILED = JobState(word="FAILED", alive=False)
CANCELLED = JobState(word="CANCELLED", alive=False)
GRANT = Grant(
    since=100.0, node_hours=8.0, kept=("1",), python="python", python_path="", arguments=()
)


def job(number, state, *, at=200.0, minutes=120.0):
    record = JobRecord(
        job_id=str(number),
        kind="worker",
        name=f"pike-worker-{number}",
        launcher="slurm",
        host="h",
        submitted_at=at,
        argv=("x",),
        minutes=minutes,
    )
    return record, state


def wanted(*known, used=(), **changed):
    given = {
        "open_requests": 40,
        "lanes": 1,
        "beating": 0,
        "most": 4,
        "walltime_minutes": 120,
        "judged_at": lambda: 0.0,
    }
    found = top_up(GRANT, known, dict(used), **given | changed)
    return found.workers, found.minutes


def test_those_that_left_are_replaced_and_what_they_left_over_is_there_again():
    left = [job(n, LEFT) for n in range(2, 6)]
    assert wanted(*left, used={str(n): 360.0 for n in range(2, 6)}) == (4, 114)


def test_no_more_than_there_is_work_for():
    assert wanted(open_requests=1) == (1, 120)
    assert wanted(open_requests=9, lanes=4) == (3, 120)
    assert wanted(open_requests=0) == (0, 0)


def test_workers_that_live_count_whoever_started_them():
    assert wanted(job(2, LIVES), job(3, LIVES), job(4, LIVES))[0] == 1
    assert wanted(beating=4)[0] == 0


def test_a_worker_that_somebody_cancelled_is_not_replaced():
    known = [job(2, CANCELLED), job(3, LEFT)]
    assert wanted(*known, used={"2": 0.0, "3": 0.0})[0] == 3


def test_what_the_accounts_do_not_know_counts_as_used():
    assert wanted(*[job(n, LEFT) for n in range(2, 6)]) == (0, 0)
    assert wanted(*[job(n, LEFT) for n in range(2, 5)]) == (4, 30)


def test_what_ended_before_the_grant_does_not_count():
    assert wanted(*[job(n, LEFT, at=50.0) for n in range(2, 6)])[0] == 4
    assert wanted(job(1, LEFT, at=50.0), used={"1": 4 * 3600})[0:2] == (4, 60)


def test_workers_that_fail_one_after_the_other_are_not_started_for_ever():
    failed = [job(n, FAILED) for n in range(2, 7)]
    used = {str(n): 3.0 for n in range(2, 7)}
    found = top_up(
        GRANT,
        failed,
        used,
        open_requests=9,
        lanes=1,
        beating=0,
        most=4,
        walltime_minutes=120,
        judged_at=lambda: 0.0,
    )
    assert found.workers == 0
    assert "5 workers failed without a verdict; the last: job 6" in found.why
    assert wanted(*failed, used=used, judged_at=lambda: 300.0)[0] == 4, "a verdict in between"


@given(
    st.floats(0, 100),
    st.integers(1, 20),
    st.integers(1, 3000),
    st.lists(st.floats(0, 1), max_size=9),
)
def test_hours_are_never_exceeded(hours, workers, walltime, used):
    """Whatever each wave uses of what it was given."""
    spent = 0.0
    for part in [*used, 1.0]:
        found = share(hours - spent, workers, walltime)
        assert found.workers <= workers
        assert found.minutes <= walltime
        spent += found.workers * found.minutes / 60 * part
        assert spent <= hours + 1e-3


def test_a_job_that_lives_may_still_use_its_whole_walltime():
    known = [job(2, LIVES), job(3, LEFT)]
    assert used_hours(known, {"2": 60.0, "3": 1800.0}) == 2.5


def test_the_grant_is_a_file_that_goes(tmp_path):
    assert read_grant(tmp_path) is None
    write_grant(tmp_path, GRANT)
    assert read_grant(tmp_path) == GRANT
    drop_grant(tmp_path)
    assert read_grant(tmp_path) is None
