"""agent.where at a site with Slurm: jobs, a command to keep running, or lines for scrontab."""

import json
import os
import subprocess
import time

import pytest
from builders.fake_slurm import FakeSlurm
from builders.slurm_run import SUBMIT, lay_out

from pike_hpc.cli import main


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("SECRET_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    return fake


@pytest.fixture
def submit(capsys):
    def run(*options):
        code = main([*SUBMIT, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def at(where, *options):
    sets = (f"agent.where={where}", *options)
    return [word for text in sets for word in ("--set", text)]


def test_in_a_shell_it_is_a_command_to_keep_running(cluster, submit, tmp_path):
    code, out, err = submit(*at("shell"))
    assert code == 0
    *jobs, command = out.splitlines()
    assert jobs == [f"worker job 1_{n}" for n in range(3)]
    assert command == f"{tmp_path}/run/slurm/agent.sh"
    assert "the agent is yours to keep running" in err
    assert "agents" not in err.partition("ceiling:")[2].splitlines()[0]


SCRONTAB = """\
#SCRON --job-name=pike-run
#SCRON --account=m1234
#SCRON --qos=cron
#SCRON --constraint=cron
#SCRON --cpus-per-task=2
#SCRON --time=30
#SCRON --signal=B:TERM@1
#SCRON --open-mode=append
#SCRON --output={run}/logs/scrontab.log
#SCRON --mem=4G
*/5 * * * * {run}/slurm/agent.sh --once --max-seconds 270
"""


def test_scrontab_gets_its_exact_lines(cluster, submit, tmp_path):
    options = ("qos=cron", "constraint=cron", "cpus=2", "walltime_minutes=30", "extra={mem: 4G}")
    sets = at("scrontab", *(f"agent.{option}" for option in options))
    code, out, err = submit(*sets, "--account", "m1234", "--dry-run")
    assert code == 0
    golden = SCRONTAB.format(run=tmp_path / "run")
    assert out.endswith(golden)
    code, out, err = submit(*sets, "--account", "m1234")
    assert code == 0
    assert out == "".join(f"worker job 1_{n}\n" for n in range(3)) + golden
    assert "add these lines with `scrontab -e`" in err
    assert "Slurm comments them out" in err


@pytest.mark.parametrize("where", ["scrontab", "shell"])
def test_status_says_where_to_look_when_no_tick_was_here_lately(
    cluster, submit, tmp_path, capsys, where
):
    assert submit(*at(where))[0] == 0
    log = tmp_path / "run/logs/agent-one.log"

    def notes():
        main(["status", "run", "--json"])
        return [note for note in json.loads(capsys.readouterr().out)["notes"] if "scrontab" in note]

    told = ["look at its lines with `scrontab -l`"] if where == "scrontab" else []
    assert [note.partition(": ")[2].partition(".")[0] for note in notes()] == told
    log.touch()
    assert notes() == []
    long_ago = time.time() - 11 * 60
    os.utime(log, (long_ago, long_ago))
    assert len(notes()) == len(told)


def test_the_script_runs_the_setup_lines_and_the_agents_command(cluster, submit, tmp_path):
    code, _, err = submit(*at("scrontab", 'setup=["export SET_UP=yes"]'))
    assert code == 0, err
    script = tmp_path / "run/slurm/agent.sh"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    (python,) = [word for word in text.split() if "/python" in word]
    script.write_text(text.replace(python, "sh -c 'echo $SET_UP $PYTHONPATH $0 $@'"))
    command = [script, "--once", "--max-seconds", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    setup, path, *words = done.stdout.split()
    assert (setup, path.partition(":")[0]) == ("yes", f"{tmp_path}/run/code/lib")
    run = str(tmp_path / "run")
    wanted = ["-P", "-m", "pike_hpc", "agent", run, "--tasks", "1,2,3,4"]
    assert words == [*wanted, "--once", "--max-seconds", "5"]
    assert "\nexport SET_UP=yes\n" in (tmp_path / "run/slurm/setup.sh").read_text()


PAID = """
search: {strategy: pike_b}
budget: {max_usd: 1}
models: {optimise: {provider: openai, model: gemini-2.5-pro, key_env: SECRET_KEY}}
"""


@pytest.fixture
def paid(cluster, tmp_path):
    """A workflow that asks a paid model; `paid(mode)` gives the user a key file of that mode."""
    workflow = tmp_path / "w.yaml"
    workflow.write_text(workflow.read_text().replace("search: {strategy: rules}\n", "") + PAID)
    key = tmp_path / "key"

    def give(mode):
        key.write_text("sk-1\n")
        key.chmod(mode)
        site = tmp_path / "here.yaml"
        site.write_text(site.read_text() + f"key_files: {{SECRET_KEY: {key}}}\n")

    return give


def test_a_key_that_is_only_in_the_environment_never_reaches_scrontab(paid, submit, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    code, out, err = submit(*at("scrontab"))
    assert (code, out) == (2, "")
    assert "scrontab gets no SECRET_KEY from your environment" in err
    assert "key_files: {SECRET_KEY: FILE}" in err
    assert submit(*at("shell"))[0] == 0


@pytest.mark.parametrize(("mode", "code"), [(0o600, 0), (0o400, 0), (0o640, 2), (0o604, 2)])
def test_a_key_file_that_others_can_read_is_refused(paid, submit, monkeypatch, mode, code):
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    paid(mode)
    found, out, err = submit(*at("scrontab"))
    assert found == code, err
    assert ("others can read this key file" in err) == (code == 2)
    assert "sk-1" not in out + err
