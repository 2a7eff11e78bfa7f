"""What `submit` says and asks before a run is there, with Slurm's programs scripted."""

import pytest
from builders.slurm_run import SUBMIT, scripted_cluster

from pike_hpc.cli import main
from pike_hpc.cli.run import Run

STARTS = "expected start, by Slurm's estimate: workers at a time Slurm does not tell, agents at"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return scripted_cluster(tmp_path, monkeypatch)


@pytest.fixture
def said(capsys):
    """`said(*options)`: the lines of a submit that did not fail, stderr's."""

    def run(*options):
        code = main([*SUBMIT, *options])
        err = capsys.readouterr().err
        assert code == 0, err
        return err.splitlines()

    return run


def test_ceiling_account_and_start_come_before_anything_else_and_slurm_is_asked_once(cluster, said):
    cluster.put("default-account", "m0000\n")
    ceiling, account, start, run, *_ = said()
    assert ceiling.startswith("ceiling: 3 node-hours for 3 workers, 96 job-hours of 1 CPUs for 4")
    assert account == "account: m0000 (Slurm's default for you)"
    assert start.startswith(STARTS)
    assert run.startswith("run: ")
    assert cluster.lines("tested") == ["worker", "agent"]
    assert len(cluster.lines("submitted")) == 2


def test_a_run_that_is_there_asks_again_for_what_it_lacks(cluster, said):
    said()
    cluster.put("queue", "1_[0-3]|PENDING|Priority\n")
    cluster.put("accounts", "2_0|FAILED\n2_1|FAILED\n2_2|FAILED\n")
    lines = said()
    assert cluster.lines("tested") == ["worker", "agent", "worker"]
    assert sum(line.startswith("account: ") for line in lines) == 1
    assert sum(line.startswith("expected start") for line in lines) == 1


def test_slurms_default_is_recorded_and_charged_like_an_account_that_was_given(
    cluster, said, tmp_path
):
    cluster.put("default-account", "m0000\n")
    said("--set", "account_gpu_suffix=_g")
    run = Run.open(tmp_path / "run").resolved
    assert (run.site.account, run.sources["account"]) == ("m0000", "Slurm's default for you")
    assert cluster.lines("charged") == ["pike-agent m0000", "pike-worker m0000_g"]


def test_of_a_run_whose_models_cost_the_ceiling_has_the_dollars(
    cluster, said, tmp_path, monkeypatch
):
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    workflow = tmp_path / "w.yaml"
    paid = """
budget: {max_usd: 50}
models: {optimise: {provider: openai, model: gemini-2.5-pro, key_env: SECRET_KEY}}
"""
    workflow.write_text(workflow.read_text().replace("rules", "pike_b") + paid)
    assert said()[0].endswith(" for 4 agents, $50.00 for models")
