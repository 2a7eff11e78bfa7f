"""What `report` reads, prints and writes where a run is not whole, or not the user's own."""

import os
import shutil

import pytest
from builders.small_run import rich_events, small_run, write

from pike_hpc.archive import rebuild, verify
from pike_hpc.cli import main
from pike_hpc.records import Paused, PikeError

OTHER = "level3-pike_13"


@pytest.fixture
def run(tmp_path):
    folder = small_run(tmp_path)
    write(folder, rich_events(), slug=OTHER, writer="v")
    return folder


def lose(run, pattern="*.jsonl"):
    for path in (run / "journal").glob(pattern):
        path.unlink()


@pytest.mark.parametrize("command", ["report", "rebuild"])
def test_an_archive_is_not_replaced_by_less(run, capsys, command):
    whole = rebuild(run).read_bytes()
    lose(run, f"{OTHER}.*")
    words = ["report"] if command == "report" else ["archive", "rebuild"]
    assert main([*words, str(run)]) == 1
    said = capsys.readouterr()
    assert (run / "archive.h5").read_bytes() == whole
    for word in (OTHER, "archive.h5", "restore", f"{OTHER}.e000001.v.jsonl"):
        assert word in said.err
    assert main(["report", str(run / "archive.h5")]) == 0, "as the message says"


def test_a_segment_that_said_nothing_may_go(run):
    write(run, [], slug=OTHER, writer="idle")
    rebuild(run)
    lose(run, f"{OTHER}.*.idle.jsonl")
    write(run, [Paused(reason="walltime")])
    assert verify(rebuild(run)) == ()


def test_a_journal_begun_anew_does_not_replace_the_archive(run):
    rebuild(run)
    shutil.rmtree(run / "journal")
    write(run, rich_events(), writer="later")
    with pytest.raises(PikeError, match="has lost 2 segments"):
        rebuild(run)


def test_without_a_journal_the_archive_is_reported(run, capsys):
    rebuild(run)
    lose(run)
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    assert "Results on cpu" in said.out
    assert "no journal" in said.err


def test_a_run_that_only_began_says_how_to_go_on(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("schema_version: 1\n")
    assert main(["report", str(tmp_path)]) == 2
    assert f"nothing is judged yet\n  where: {tmp_path}" in (said := capsys.readouterr().err)
    assert f"pike-hpc resume {tmp_path}" in said


def test_the_table_comes_where_the_page_cannot_be_written(run, capsys):
    (run / "report.html").mkdir()
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    assert "Results on cpu" in said.out
    assert "no page: cannot write" in said.err
    assert "--html FILE" in said.err


def test_a_page_that_was_asked_for_must_be_written(run, capsys):
    assert main(["report", str(run), "--html", str(run)]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_run_of_another_user_is_reported_as_its_archive_has_it(run, capsys, monkeypatch):
    old = rebuild(run).read_bytes()
    write(run, [Paused(reason="walltime")])
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    assert "Results on cpu" in said.out
    assert "older" in said.err
    assert (run / "archive.h5").read_bytes() == old
