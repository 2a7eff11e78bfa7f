"""A small run with everything in it: built, verified and read."""

import h5py
import pytest
from builders.small_run import (
    HOSTILE,
    TASK,
    candidate_id,
    proposed,
    result,
    small_run,
    write,
)

from pike_hpc.archive import (
    QueryOutcome,
    TaskState,
    canonical,
    elites,
    is_current,
    read,
    rebuild,
    verify,
)
from pike_hpc.journal import WriterLock, read_task
from pike_hpc.records import (
    EvalStatus,
    Evaluated,
    Finished,
    Paused,
    Requested,
    SearchEnded,
    TryAgainLater,
    UsageError,
)


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path)


def test_a_rebuilt_archive_is_sound_and_current(run):
    path = rebuild(run)
    assert path == run / "archive.h5"
    assert verify(path) == ()
    assert is_current(run)
    assert sorted(p.name for p in run.iterdir() if "archive" in p.name) == [
        "archive.h5",
        "archive.lock",
    ]


def test_it_reads_back_every_event_exactly(run):
    archive = read(rebuild(run))
    assert archive.run_id == "level3-0123abcd"
    assert archive.created.startswith("2023-11-14T22:13:2")
    assert archive.config_text == "schema_version: 1\nname: level3\n"
    assert not archive.complete
    (task,) = archive.tasks
    assert task.events == read_task(run, "level3-pike_4")
    assert task.task == TASK
    assert task.device_kind == "cpu"
    assert task.state is TaskState.RUNNING
    assert [made.node for made in task.proposals][:2] == ["rule/identity", "p0/b0/r0"]
    assert task.sources[candidate_id(HOSTILE)] == HOSTILE
    assert task.sources[candidate_id("a")] == "a"
    assert [final.result for final in task.results] == [
        result("a", log="log \0\udcff", tags=("early_stop", "weights_by_seed")),
        result(HOSTILE, EvalStatus.RUNTIME_ERROR),
        result("fixed", ms=0.5),
    ]
    assert task.ideas[0].ideas.ideas == ("fuse", "fold")
    assert task.declined[0].declined.operator == "rule:sdpa"


def test_queries_tell_their_outcome_and_cost(run):
    queries = {q.query_id: q for q in read(rebuild(run)).tasks[0].queries}
    assert {name: q.outcome for name, q in queries.items()} == {
        "q0": QueryOutcome.ANSWERED,
        "q1": QueryOutcome.FAILED,
        "q2": QueryOutcome.LOST,
        "q3": QueryOutcome.ANSWERED,
        "q4": QueryOutcome.OPEN,
    }
    assert [queries[name].cost_usd for name in ("q0", "q1", "q2", "q4")] == [0.25, 0.0, 0.5, 0.5]
    assert queries["q3"].text.startswith("```python")
    assert queries["q1"].failure == "RateLimit: slow down"


@pytest.mark.parametrize(
    ("lives", "state"),
    [
        ([[Paused(reason="walltime")]], TaskState.PAUSED),
        ([[Paused(reason="walltime")], []], TaskState.RUNNING),
        ([[Paused(reason="walltime")], [Finished(reason="done")]], TaskState.FINISHED),
        ([[Finished(reason="done")], []], TaskState.FINISHED),
    ],
)
def test_the_state_of_a_task(run, lives, state):
    for events in lives:
        write(run, events)
    archive = read(rebuild(run))
    assert archive.tasks[0].state is state
    assert archive.complete is (state is TaskState.FINISHED)


def test_tables_for_people(run):
    with h5py.File(rebuild(run), "r") as file:
        assert file.attrs["format"] == "pike-hpc-run"
        assert file.attrs["format_version"] == 2
        rows = file["evaluations"][()]
        assert [s.decode() for s in rows["status"]] == ["PASSED", "RUNTIME_ERROR", "PASSED"]
        assert rows["speedup"][0] == 2.0
        assert rows["speedup"][1] != rows["speedup"][1]  # NaN: not measured
        assert [s.decode() for s in file["queries"]["outcome"]] == [
            "answered", "failed", "lost", "answered", "open",
        ]  # fmt: skip
        assert len(file["candidates"]) == 3
        assert len(file["proposals"]) == 4
        for name in ("evaluations", "events", "blobs/source/bytes"):
            assert file[name].fletcher32
            assert file[name].compression == "gzip"


def retimed(source, attempt, **options):
    name = f"{source}{attempt}"
    return [
        Requested(request_id=name, candidate_id=candidate_id(source), retime=attempt),
        Evaluated(result=result(source, retime=attempt, **options)),
    ]


def test_search_value_and_the_one_timed_again_stand_side_by_side(run):
    write(
        run,
        [
            SearchEnded(reason="over"),
            *retimed("fixed", 1, ms=0.8, tags=("noisy",)),
            *retimed("a", 1, status=EvalStatus.WRONG_RESULT),
            *retimed("fixed", 2, ms=0.625),
            *retimed("fixed", 3, status=EvalStatus.JUDGE_ERROR),
            Finished(reason="done"),
        ],
    )
    path = rebuild(run)
    assert verify(path) == ()
    with h5py.File(path, "r") as file:
        assert file["evaluations"]["retime"].tolist() == [0, 0, 0, 1, 1, 2, 3]
        rows = file["elites"][()]
    assert [i.decode() for i in rows["candidate_id"]] == [candidate_id("fixed"), candidate_id("a")]
    assert rows["attempts"].tolist() == [3, 1]
    assert rows["search_speedup"].tolist() == [4.0, 2.0]
    assert rows["speedup"][0] == 3.2
    assert rows["speedup"][1] != rows["speedup"][1]
    assert rows["status"].tolist() == [b"PASSED", b"WRONG_RESULT"]
    task = read(path).tasks[0]
    assert [r.result.key.retime for r in task.results] == [0, 0, 0]
    assert [(e.searched.timing.speedup, e.attempts) for e in elites(task)] == [(4.0, 3), (2.0, 1)]
    assert elites(task)[0].retimed.timing.speedup == 3.2


def test_the_canonical_text_does_not_say_who_was_timed_again(run):
    before = canonical(rebuild(run))
    write(run, [SearchEnded(reason="over"), *retimed("fixed", 1), Finished(reason="done")])
    assert canonical(rebuild(run)) == before


def test_the_same_journal_gives_the_same_bytes(run):
    first = rebuild(run).read_bytes()
    assert rebuild(run).read_bytes() == first


def test_equal_sources_are_kept_once(run, tmp_path):
    write(run, [proposed(f"again/{n}", "x" * 9000, operator="fix") for n in range(50)])
    with h5py.File(rebuild(run), "r") as file:
        assert len(file["blobs/source/bytes"]) < 20_000
        assert len(file["proposals"]) == 54


def test_an_archive_grows_old(run):
    assert not is_current(run)
    rebuild(run)
    write(run, [Finished(reason="done")])
    assert not is_current(run)
    rebuild(run)
    assert is_current(run)
    (run / "run.yaml").write_text("name: other\n")
    assert not is_current(run)
    (run / "archive.h5").write_bytes(b"garbage")
    assert not is_current(run)


def test_a_journal_that_has_not_told_its_task_yet(run):
    write(run, [], slug="level3-pike_8")
    path = rebuild(run)
    assert verify(path) == ()
    archive = read(path)
    assert [task.slug for task in archive.tasks] == ["level3-pike_4"]
    assert not archive.complete


def test_no_run_yaml_is_no_obstacle(run):
    (run / "run.yaml").unlink()
    assert read(rebuild(run)).config_text == ""


def test_nothing_to_build_from(tmp_path):
    with pytest.raises(UsageError, match="no journal"):
        rebuild(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_maker_at_a_time(run):
    with (
        WriterLock.take(run / "archive.lock", writer="report on n3", clock=lambda: 0.0),
        pytest.raises(TryAgainLater, match="report on n3"),
    ):
        rebuild(run, wait_s=0.0)
    rebuild(run)
