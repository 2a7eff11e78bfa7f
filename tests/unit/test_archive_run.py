"""A small run with everything in it: built, verified, read, exported, and damaged."""

import csv
import json
import shutil

import h5py
import numpy as np
import pytest

from pike_hpc.archive import (
    QueryOutcome,
    TaskState,
    canonical,
    elites,
    export_csv,
    export_pike_layout,
    is_current,
    read,
    rebuild,
    verify,
)
from pike_hpc.journal import TaskJournal, WriterLock, read_task
from pike_hpc.records import (
    Brainstormed,
    Candidate,
    Correctness,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    LegacyVerdicts,
    Paused,
    PikeError,
    Proposal,
    Proposed,
    QueryAnswered,
    QueryFailed,
    QueryLost,
    QueryReserved,
    Requested,
    ResultKey,
    SearchEnded,
    Task,
    TaskOpened,
    Tier,
    Timing,
    TryAgainLater,
    Usage,
    UsageError,
)

HOSTILE = "print('\0 \ud800 </script> =1+1')\n"
TASK = Task(suite="level3-pike", id="4", name="LeNet", source="import torch\n")


def candidate_id(source):
    return Candidate(task_digest=TASK.digest, source=source).id


def result(source, status=EvalStatus.PASSED, *, ms=1.0, tags=(), log="", error=1e-7, retime=0):
    passed = status is EvalStatus.PASSED
    return EvalResult(
        key=ResultKey(
            task_digest=TASK.digest,
            candidate_id=candidate_id(source),
            device_kind="cpu",
            image_digest="none",
            retime=retime,
        ),
        status=status,
        tier=Tier.FP32 if passed else None,
        tags=tags,
        correctness=Correctness(
            relative_error=error,
            limit=1e-5,
            seeds=3,
            reference_precision="float64",
            legacy=LegacyVerdicts(pike=True, kernelbench=False),
        )
        if passed
        else None,
        timing=Timing(
            candidate_ms=ms, reference_ms=2.0, speedup=2.0 / ms, ci95=(1.0, 3.0), windows=8
        )
        if passed
        else None,
        message="fine",
        log_tail=log,
    )


def proposed(node, source, *, operator="rule:identity", keep_source=True, **place):
    proposal = Proposal(candidate_id=candidate_id(source), operator=operator, **place)
    return Proposed(node=node, proposal=proposal, source=source if keep_source else "")


def reserved(query_id, node, role="optimise"):
    return QueryReserved(
        query_id=query_id,
        node=node,
        role=role,
        model="m",
        prompt_digest="p" * 64,
        max_cost_usd=0.5,
    )


def answered(query_id, text, cost=0.25):
    usage = Usage(model="m", input_tokens=10, output_tokens=20, cost_usd=cost)
    return QueryAnswered(
        query_id=query_id, text=text, finish_reason="stop", usage=usage, latency_s=1.5
    )


def rich_events():
    return [
        TaskOpened(task=TASK, device_kind="cpu"),
        proposed("rule/identity", "a"),
        Requested(request_id="r", candidate_id=candidate_id("a")),
        Declined(node="rule/sdpa", operator="rule:sdpa", reason="no attention"),
        Evaluated(result=result("a", log="log \0\udcff", tags=("early_stop", "weights_by_seed"))),
        reserved("q0", "p0", "brainstorm"),
        answered("q0", "1. fuse\n2. fold"),
        Brainstormed(node="p0", ideas=("fuse", "fold")),
        reserved("q1", "p0/b0/r0"),
        QueryFailed(query_id="q1", kind="RateLimit", message="slow down", charged=False),
        reserved("q2", "p0/b0/r0"),
        QueryLost(query_id="q2"),
        reserved("q3", "p0/b0/r0"),
        answered("q3", "```python\n" + HOSTILE + "```"),
        proposed("p0/b0/r0", HOSTILE, operator="optimise", phase=0, branch=0, round=0),
        Evaluated(result=result(HOSTILE, EvalStatus.RUNTIME_ERROR)),
        proposed("p0/b0/r1", "fixed", operator="fix", phase=0, branch=0, round=1),
        Evaluated(result=result("fixed", ms=0.5)),
        proposed("p0/b1/r0", "a", operator="optimise", keep_source=False, phase=0, branch=1,
                 round=0, parent_ids=(candidate_id("fixed"),)),
        reserved("q4", "p1"),
    ]  # fmt: skip


def write(run, events, *, slug="level3-pike_4", writer="w", start=1_700_000_000.0):
    ticks = iter(range(1_000_000))
    clock = lambda: start + next(ticks)  # noqa: E731
    with TaskJournal.open(run, slug, writer=writer, seed=1, clock=clock) as journal:
        for event in events:
            journal.append(event, durable=False)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "level3-0123abcd"
    folder.mkdir()
    (folder / "run.yaml").write_text("schema_version: 1\nname: level3\n")
    write(folder, rich_events())
    return folder


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


def as_version_1(path):
    """What version 1 wrote: no /elites, no column `retime`."""
    with h5py.File(path, "r+") as file:
        del file["elites"]
        rows = file["evaluations"][()]
        del file["evaluations"]
        names = [name for name in rows.dtype.names if name != "retime"]
        old = np.empty(len(rows), dtype=[(name, file_type(rows, name)) for name in names])
        for name in names:
            old[name] = rows[name]
        file.create_dataset("evaluations", data=old, fletcher32=True, chunks=True)
        file.attrs["format_version"] = 1


def file_type(rows, name):
    kind = rows.dtype[name]
    return h5py.string_dtype("utf-8", kind.itemsize) if kind.kind == "S" else kind


def test_an_archive_of_the_version_before_is_read_and_verified(run):
    path = rebuild(run)
    whole = read(path)
    as_version_1(path)
    assert verify(path) == ()
    assert read(path).tasks == whole.tasks
    with h5py.File(path, "r+") as file:
        file["proposals"].resize((2,))
    assert any("/proposals has 2 rows" in problem for problem in verify(path))


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


def test_a_damaged_journal_leaves_the_old_archive(run):
    before = rebuild(run).read_bytes()
    (segment,) = (run / "journal").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b"rule/sdpa", b"rule/XXXX"))
    with pytest.raises(PikeError, match="line 5"):
        rebuild(run)
    assert (run / "archive.h5").read_bytes() == before


def test_one_maker_at_a_time(run):
    with (
        WriterLock.take(run / "archive.lock", writer="report on n3", clock=lambda: 0.0),
        pytest.raises(TryAgainLater, match="report on n3"),
    ):
        rebuild(run, wait_s=0.0)
    rebuild(run)


@pytest.mark.parametrize("reader", [read, canonical])
def test_what_is_no_archive_gets_one_message(run, tmp_path, reader):
    path = rebuild(run)
    whole = path.read_bytes()
    bad = {
        "missing": None,
        "empty": b"",
        "text": b"hello\n" * 100,
        "truncated": whole[: len(whole) // 2],
        "cut short": whole[:-1],
    }
    for name, data in bad.items():
        target = tmp_path / f"{name}.h5"
        if data is not None:
            target.write_bytes(data)
        with pytest.raises(UsageError) as error:
            reader(target)
        message = str(error.value)
        assert str(target) in message
        assert f"pike-hpc archive rebuild {tmp_path}" in message
    with pytest.raises(UsageError):
        reader(tmp_path)


def test_foreign_and_other_versions_are_named(run, tmp_path):
    foreign = tmp_path / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(UsageError, match="not written by pike-hpc"):
        read(foreign)
    path = rebuild(run)
    for version in (0, 3):
        with h5py.File(path, "r+") as file:
            file.attrs["format_version"] = version
        with pytest.raises(UsageError, match=f"format version {version}"):
            read(path)
        (problem,) = verify(path)
        assert f"format version {version}" in problem


def alter(file, name, change):
    rows = file[name][()]
    change(rows)
    file[name][...] = rows


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda f: f["blobs/source/bytes"].__setitem__(3, 255), "does not match its sha256"),
        (lambda f: f["blobs/log/offsets"].__setitem__(1, 10**9), "do not divide"),
        (lambda f: alter(f, "events", lambda r: r["body"].__setitem__(2, 10**6)), "body points"),
        (lambda f: alter(f, "events", lambda r: r["text"].__setitem__(1, 99)), "text points"),
        (
            lambda f: alter(f, "proposals", lambda r: r["candidate"].__setitem__(0, -1)),
            "candidate points",
        ),
        (
            lambda f: alter(f, "candidates", lambda r: r["source"].__setitem__(0, 0)),
            "source_sha256",
        ),
        (lambda f: f["evaluations"].resize((2,)), "/evaluations has 2 rows for 3"),
        (lambda f: f["events"].resize((5,)), "promises 21 events, found 5"),
        (lambda f: f.__delitem__("queries"), "/queries is missing"),
        (lambda f: f.attrs.__setitem__("config_sha256", "0"), "config_sha256"),
        (lambda f: f["provenance/run_yaml/bytes"].__setitem__(0, 7), "run_yaml"),
    ],
)
def test_verify_names_what_is_wrong(run, damage, found):
    path = rebuild(run)
    with h5py.File(path, "r+") as file:
        damage(file)
    assert any(found in problem for problem in verify(path)), verify(path)


def test_verify_of_nothing(tmp_path):
    with pytest.raises(UsageError, match="no archive"):
        verify(tmp_path / "archive.h5")


def test_any_flipped_byte_of_the_data_is_noticed(run):
    path = rebuild(run)
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:
        spans = [
            (chunk.byte_offset, chunk.size)
            for name in ("events", "evaluations", "blobs/event/bytes", "blobs/source/sha256")
            for chunk in [file[name].id.get_chunk_info(0)]
        ]
    for offset, size in spans:
        for place in (offset, offset + size // 2, offset + size - 1):
            data = bytearray(whole)
            data[place] ^= 0x10
            path.write_bytes(data)
            assert verify(path)


def table_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_csv(run, tmp_path):
    paths = export_csv(rebuild(run), tmp_path / "csv")
    tables = {p.stem: table_of(p) for p in paths}
    assert [row["status"] for row in tables["evaluations"]] == [
        "PASSED", "RUNTIME_ERROR", "PASSED",
    ]  # fmt: skip
    assert tables["evaluations"][2]["candidate_ms"] == "0.5"
    assert tables["evaluations"][1]["speedup"] == ""
    assert tables["candidates"][3]["parent_ids"] == candidate_id("fixed")
    assert [row["cost_usd"] for row in tables["queries"]] == ["0.25", "0.0", "0.5", "0.25", "0.5"]
    assert {row["task"] for table in tables.values() for row in table} == {"level3-pike/4"}


def test_csv_cells_are_no_formulas(run, tmp_path):
    write(run, [proposed("=cmd()", "z", operator="@SUM\0\ud800")])
    rows = table_of(export_csv(rebuild(run), tmp_path / "csv")[1])
    assert rows[-1]["node"] == "'=cmd()"
    assert rows[-1]["operator"] == "'@SUM\\x00\\ud800"


def test_pike_layout(run, tmp_path):
    tasks = export_pike_layout(rebuild(run), tmp_path / "out")
    attempts = tasks / "task4" / "output" / "iter_output"
    found = sorted(str(p.parent.relative_to(attempts)) for p in attempts.rglob("code.py"))
    assert found == [
        "iter_0/attempts/attempt_0",
        "iter_1/attempts/attempt_0",
        "iter_1/attempts/attempt_1",
        "iter_2/attempts/attempt_0",
    ]
    first = attempts / found[1]
    assert (first / "code.py").read_bytes() == HOSTILE.encode("utf-8", "surrogatepass")
    assert (first / "response.md").exists()
    failed = json.loads((first / "metrics_artifacts.json").read_text())
    assert failed["metrics"] == {}
    assert failed["artifacts"]["results"]["eval_results"] == {"loaded": True}
    fixed = json.loads((attempts / found[2] / "metrics_artifacts.json").read_text())
    assert fixed["metrics"] == {"runtime": 0.5}
    ideas = json.loads((tasks / "task4" / "output" / "ideas" / "ideas.json").read_text())
    assert ideas == ["fuse", "fold"]
    with pytest.raises(UsageError, match="already"):
        export_pike_layout(run / "archive.h5", tmp_path / "out")


def test_pike_layout_cannot_leave_its_folder(run, tmp_path):
    evil = Task(suite="s", id="../../../evil", name="n", source="x")
    write(run, [TaskOpened(task=evil, device_kind="cpu"), proposed("n", "z")], slug="s_evil")
    tasks = export_pike_layout(rebuild(run), tmp_path / "out")
    assert sorted(p.name for p in tasks.iterdir()) == ["task4", "task_________evil"]


class TestCanonical:
    def test_is_versioned_ascii_lines(self, run):
        text = canonical(rebuild(run))
        header, *lines = text.splitlines()
        assert header == "# pike-hpc canonical 1"
        assert text.isascii()
        assert {json.loads(line)["is"] for line in lines} == {
            "task", "candidate", "proposal", "declined", "verdict", "ideas", "query",
        }  # fmt: skip

    def test_drops_what_a_clock_made(self, run):
        text = canonical(rebuild(run))
        assert "weights_by_seed" in text
        for word in ("early_stop", "slow down", "log ", "e-07", "q1", "q2", "speedup", '"w"'):
            assert word not in text

    def test_an_interrupted_run_equals_an_uninterrupted_one(self, run, tmp_path):
        other = tmp_path / "another-name"
        other.mkdir()
        events = rich_events()
        write(other, events[:4], writer="first", start=5e8)
        write(other, [reserved("lost", "p0", "brainstorm")], writer="second", start=6e8)
        later = [QueryLost(query_id="lost"), *events[4:-1]]
        later[1] = Evaluated(result=result("a", ms=7.0, tags=("weights_by_seed",), error=2e-7))
        # Verdicts arrive in another order, and one was first undecided.
        later.insert(3, Evaluated(result=result("fixed", EvalStatus.JUDGE_ERROR)))
        write(other, later, writer="third", start=7e8)
        write(other, [Paused(reason="walltime")], writer="fourth")
        assert canonical(rebuild(other)) == canonical(rebuild(run))

    @pytest.mark.parametrize(
        "more",
        [
            proposed("rule/other", "b"),
            Declined(node="rule/x", operator="rule:x", reason=""),
            Evaluated(result=result("b", EvalStatus.WRONG_RESULT)),
            Brainstormed(node="p1", ideas=()),
            answered("q4", "late"),
        ],
    )
    def test_any_decision_shows(self, run, more):
        before = canonical(rebuild(run))
        write(run, [more])
        assert canonical(rebuild(run)) != before

    def test_a_moved_archive_gives_the_same_text(self, run, tmp_path):
        path = rebuild(run)
        shutil.copy(path, tmp_path / "copy.h5")
        assert canonical(tmp_path / "copy.h5") == canonical(path)
