"""What is made of an archive: CSV, PIKE's folders, the canonical text."""

import csv
import importlib.util
import json
import shutil

import pandas as pd
import pytest
from builders.required import lacking
from builders.small_run import (
    HOSTILE,
    answered,
    candidate_id,
    proposed,
    reserved,
    result,
    rich_events,
    small_run,
    write,
)

from pike_hpc.archive import (
    canonical,
    export_csv,
    export_pike_layout,
    rebuild,
)
from pike_hpc.cli import main
from pike_hpc.records import (
    Brainstormed,
    Declined,
    EvalStatus,
    Evaluated,
    Paused,
    QueryLost,
    Task,
    TaskOpened,
    UsageError,
)


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path)


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


@pytest.fixture
def pyarrow():
    if importlib.util.find_spec("pyarrow") is None:
        lacking("pyarrow", "pyarrow is not installed: pip install pyarrow")


def test_parquet_has_the_tables_of_csv_in_types_of_their_own(run, tmp_path, pyarrow):
    archive = rebuild(run)
    assert main(["archive", "export", str(archive), "--parquet", str(tmp_path / "p")]) == 0
    for path in export_csv(archive, tmp_path / "csv"):
        frame = pd.read_parquet(tmp_path / "p" / f"{path.stem}.parquet", dtype_backend="pyarrow")
        rows = table_of(path)
        assert list(frame.columns) == list(rows[0])
        assert len(frame) == len(rows)
        for name in ("task", "time"):
            assert [str(cell) for cell in frame[name]] == [row[name] for row in rows]
    evaluations = pd.read_parquet(tmp_path / "p" / "evaluations.parquet")
    assert evaluations["candidate_ms"].dtype == "Float64"
    assert evaluations["device_ms"].isna().all(), "and of that type, too"
    assert evaluations["device_ms"].dtype == "Float64"
    assert evaluations["retime"].dtype == "Int64"
    assert not [each for each in (tmp_path / "p").iterdir() if each.suffix != ".parquet"]


def test_parquet_without_pyarrow_is_refused_in_one_message(run, tmp_path, capsys):
    archive = rebuild(run)
    if importlib.util.find_spec("pyarrow") is not None:
        pytest.skip("pyarrow is installed here")
    assert main(["archive", "export", str(archive), "--parquet", str(tmp_path / "p")]) == 2
    said = capsys.readouterr().err
    assert "pip install pyarrow" in said
    assert "--csv DIR" in said
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("kind", ["--csv", "--parquet", "--pike"])
def test_several_archives_never_share_a_folder(run, tmp_path, capsys, kind):
    archive = str(rebuild(run))
    assert main(["archive", "export", archive, archive, kind, str(tmp_path / "out")]) == 2
    assert "2 archives, and one folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["archive", "export", archive, archive, "--canonical"]) == 0
