"""A walk by made-up verdicts asks nobody, whatever the run was made for."""

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
models: {optimise: {provider: openai, model: some-model, key_env: NOBODYS_KEY}}
evaluate: {devices: [simulated]}
"""


def test_a_rehearsal_without_a_job_is_walked_and_its_model_is_not_asked(tmp_path, monkeypatch):
    """As a submitter leaves it that is killed before its first job: who asked would need a key."""
    monkeypatch.delenv("NOBODYS_KEY", raising=False)
    (tmp_path / "w.yaml").write_text(WORKFLOW)
    places = {"sites_dir": sites_dir({}), "user_config_dir": tmp_path}
    resolved = resolve(tmp_path / "w.yaml", "local", environ={}, **places)
    run = Run.create(tmp_path / "run", resolved, tasks_of(resolved)[0])
    assert main(["resume", str(run.dir)]) == 0
    judged = [
        s.event for s in read_task(run.dir, "level3-pike_4") if isinstance(s.event, Evaluated)
    ]
    assert len(judged) >= 4
    assert main(["archive", "verify", str(run.dir)]) == 0
