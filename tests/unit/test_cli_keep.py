"""A finished run is kept whole, without what belongs to one machine."""

import dataclasses

from pike_hpc.cli import main
from pike_hpc.cli.keep import keep
from pike_hpc.cli.run import Run


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
