"""A finished run is kept whole, without what belongs to one machine."""

import dataclasses
import shutil

import pytest
from builders.simulated_run import make_run

from pike_hpc.cli import main
from pike_hpc.cli.keep import keep
from pike_hpc.cli.run import Run
from pike_hpc.journal import WriterLock


def test_the_copy_is_enough_to_read_the_run(tmp_path, capsys):
    workflow = tmp_path / "w.yaml"
    workflow.write_text(
        "schema_version: 1\nname: k\ntasks: {suite: level3-pike, ids: '4'}\n"
        "search: {strategy: rules}\n"
    )
    made = tmp_path / "runs" / "one"
    arguments = ["submit", "--workflow", workflow, "--simulate", "--run", made]
    arguments += ["--set", f"paths.keep={tmp_path / 'kept'}"]
    assert main([str(a) for a in arguments]) == 0
    kept = tmp_path / "kept" / "one"
    assert f"kept     {kept}" in capsys.readouterr().out
    assert {p.name for p in kept.iterdir()} >= {"run.yaml", "journal", "archive.h5", "code"}
    assert not (kept / "logs").exists()
    assert not list(kept.rglob(".kind")), "another file system may have other locks"
    assert main(["status", str(kept), "--json"]) == 0


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_lost(tmp_path, capsys):
    workflow = tmp_path / "w.yaml"
    workflow.write_text(
        "schema_version: 1\nname: k\ntasks: {suite: level3-pike, ids: '4'}\n"
        "search: {strategy: rules}\n"
    )
    made = tmp_path / "one"
    assert main(["submit", "--workflow", str(workflow), "--simulate", "--run", str(made)]) == 0
    run = Run.open(made)
    site = run.resolved.site
    blocked = tmp_path / "a file"
    blocked.write_text("")
    paths = dataclasses.replace(site.paths, keep=str(blocked / "x"))
    site = dataclasses.replace(site, paths=paths)
    run = Run(run.dir, dataclasses.replace(run.resolved, site=site), run.tasks)
    assert keep(run) is None
    assert "was not copied" in capsys.readouterr().err
    assert (made / "archive.h5").exists()


@pytest.fixture
def kept_run(tmp_path):
    """A run that has not begun, of a site that keeps runs."""
    run = make_run(tmp_path / "a", 'tasks: {suite: level0, ids: "1"}\nsearch: {strategy: rules}\n')
    site = run.resolved.site
    paths = dataclasses.replace(site.paths, keep=str(tmp_path / "kept"))
    site = dataclasses.replace(site, paths=paths)
    return Run(run.dir, dataclasses.replace(run.resolved, site=site), run.tasks)


def test_the_code_of_a_run_is_kept_with_its_packages_of_the_names_left_behind(kept_run):
    lib = kept_run.dir / "code" / "lib" / "pike_hpc"
    for name in ("mailbox", "slurm", "logs"):
        for folder in (kept_run.dir, lib):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text("")
    kept = keep(kept_run)
    assert kept is not None
    assert {p.name for p in (kept / "code/lib/pike_hpc").iterdir()} == {"mailbox", "slurm", "logs"}
    assert not {"mailbox", "slurm", "logs"} & {p.name for p in kept.iterdir()}


def test_a_copy_that_is_there_is_replaced(kept_run):
    kept = keep(kept_run)
    (kept_run.dir / "report.html").write_text("new")
    assert keep(kept_run) == kept
    assert (kept / "report.html").read_text() == "new"
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]


def test_what_a_kill_between_the_renames_left_is_put_back_or_replaced(kept_run):
    kept = keep(kept_run)
    aside = kept.rename(kept.with_name(kept.name + ".old"))
    shutil.copytree(aside, kept.with_name(kept.name + ".new"))
    assert keep(kept_run) == kept
    assert (kept / "run.yaml").exists()
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]


def test_the_last_copy_stays_under_its_name_where_the_next_fails(kept_run):
    kept = keep(kept_run)
    kept.rename(kept.with_name(kept.name + ".old"))
    (kept_run.dir / "code" / "gone").symlink_to("nowhere")
    assert keep(kept_run) is None
    assert (kept / "run.yaml").exists()


def test_two_never_copy_at_a_time(kept_run, capsys):
    lock = kept_run.dir / "slurm" / "locks" / "keep"
    with WriterLock.take(lock, writer="another", clock=lambda: 0.0):
        assert keep(kept_run) is None
    assert capsys.readouterr().err == ""
    assert keep(kept_run) is not None


def test_a_run_that_goes_on_where_it_is_kept_is_not_copied_over_itself(kept_run):
    kept = keep(kept_run)
    (kept / "logs").mkdir()
    again = Run(kept, kept_run.resolved, kept_run.tasks)
    assert keep(again) == kept
    assert (kept / "logs").exists()
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]
