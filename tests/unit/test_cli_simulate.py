"""A walk by made-up verdicts asks nobody, and no run that asks somebody is walked."""

import json
import shutil

import pytest

from pike_hpc.cli import main
from pike_hpc.cli.run import Run, tasks_of
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.journal import read_task
from pike_hpc.records import Evaluated

WORKFLOW = """
schema_version: 1
name: made-up
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: pike_b}
budget: {evaluations_per_task: 4, max_usd: 1}
models: {optimise: MODEL}
evaluate: {devices: [simulated]}
"""


def made(tmp_path, **models):
    """A run of that workflow, as a submitter leaves it that is killed before its first job."""
    (tmp_path / "w.yaml").write_text(WORKFLOW.replace("MODEL", json.dumps(models)))
    places = {"sites_dir": sites_dir({}), "user_config_dir": tmp_path}
    resolved = resolve(tmp_path / "w.yaml", "local", environ={}, **places)
    return Run.create(tmp_path / "run", resolved, tasks_of(resolved)[0])


def judged(run):
    return [s.event for s in read_task(run.dir, "level3-pike_4") if isinstance(s.event, Evaluated)]


def test_a_run_whose_model_is_scripted_is_walked_on_in_one_process(tmp_path):
    run = made(tmp_path, provider="scripted", model="default")
    assert main(["resume", str(run.dir)]) == 0
    assert len(judged(run)) >= 4
    assert main(["archive", "verify", str(run.dir)]) == 0


@pytest.mark.parametrize("again", ["resume", "walk"])
def test_one_that_asks_a_real_model_never_gets_answers_of_another(
    tmp_path, monkeypatch, capsys, again
):
    monkeypatch.delenv("NOBODYS_KEY", raising=False)
    run = made(tmp_path, provider="openai", model="some-model", key_env="NOBODYS_KEY")
    walk = ["submit", "--workflow", str(tmp_path / "w.yaml"), "--simulate", "--run", str(run.dir)]
    assert main(["resume", str(run.dir)] if again == "resume" else walk) == 2
    wanted = "NOBODYS_KEY" if again == "resume" else "was not made to be walked through"
    assert wanted in capsys.readouterr().err
    assert judged(run) == []


@pytest.mark.parametrize("provider", ["scripted", "openai"])
def test_a_run_that_has_lost_its_journal_does_not_begin_anew(
    tmp_path, monkeypatch, capsys, provider
):
    """Its archive is the last copy, and would be replaced in the end."""
    walked = made(tmp_path, provider="scripted", model="default")
    assert main(["resume", str(walked.dir)]) == 0
    shutil.rmtree(walked.dir / "journal")
    monkeypatch.setenv("NOBODYS_KEY", "x")
    model = "default" if provider == "scripted" else "gemini-2.5-flash"
    run = made(tmp_path, provider=provider, model=model, key_env="NOBODYS_KEY")
    whole = (run.dir / "archive.h5").read_bytes()
    assert main(["resume", str(run.dir)]) == 1
    assert "all of level3-pike_4" in capsys.readouterr().err
    assert judged(run) == []
    assert (run.dir / "archive.h5").read_bytes() == whole
