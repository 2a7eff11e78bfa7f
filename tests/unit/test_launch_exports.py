"""Which variables go along into a job: a worker's gets no key, whatever the list says."""

import subprocess

import pytest

from pike_hpc.config import env, resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.launch import Job, SlurmLauncher, dry_run, plan_jobs, slurm_parameters
from pike_hpc.launch.exports import handed_over

WORKFLOW = """
schema_version: 1
name: paid
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: pike_b}
budget: {max_usd: 1}
models: {optimise: {provider: openai, model: some-model, key_env: SECRET_KEY}}
"""

SUBMITTER = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "LC_ALL": "C",
    "BASH_FUNC_module%%": "() { eval $(modulecmd bash $*); }",
    "DATA": "/data",
    "https_proxy": "http://me:password@proxy",
    "SECRET_KEY": "sk-1",
    "HF_TOKEN": "hf-1",
    "SBATCH_QOS": "premium",
    "SLURM_JOB_ID": "1",
}


@pytest.fixture
def resolved(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(WORKFLOW)
    sets = ['setup=["source $DATA/setup.sh ${SECRET_KEY}"]']
    places = {"sites_dir": sites_dir({}), "user_config_dir": tmp_path}
    return resolve(path, "devcluster", environ={"HOME": "/home/me"}, sets=sets, **places)


@pytest.fixture
def jobs(resolved, tmp_path):
    workers, agents = plan_jobs(resolved, tmp_path, ["4"], python="python", lib=tmp_path)
    return {"worker": workers[0], "agent": agents[0]}


@pytest.mark.parametrize(
    ("kind", "more"), [("worker", set()), ("agent", {"SECRET_KEY", "https_proxy"})]
)
def test_the_list_is_explicit(jobs, kind, more):
    job = jobs[kind]
    given = handed_over(SUBMITTER, job.exports, job.unset)
    assert set(given) == {"HOME", "PATH", "LC_ALL", "BASH_FUNC_module%%", "DATA"} | more
    assert all(SUBMITTER[name] == value for name, value in given.items())


def test_no_pattern_brings_a_key_in():
    assert handed_over({"LMOD_KEY": "sk"}, ["LMOD_*"], never=["LMOD_KEY"]) == {}


@pytest.mark.parametrize("kind", ["worker", "agent"])
def test_the_rendered_script_has_names_and_no_value(resolved, jobs, tmp_path, kind):
    parameters = slurm_parameters(resolved, kind, f"pike-{kind}")
    with env.replaced(SUBMITTER):
        text = dry_run(tmp_path, [jobs[kind]], parameters)
    assert not [value for value in ("sk-1", "hf-1", "password") if value in text]
    named = text.splitlines()[0]
    assert named.startswith("# environment")
    assert ("SECRET_KEY" in named) == (kind == "agent")


def test_sbatch_is_run_without_what_the_job_must_not_have(jobs, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text("#!/bin/sh\n")
    (folder / "sbatch").write_text(
        f"#!/bin/sh\nenv > {folder}/env\necho Submitted batch job 7\n"
    )  # an absolute path: it has no variable to find it by
    for program in folder.iterdir():
        program.chmod(0o755)
    for name, value in (SUBMITTER | {"PATH": f"{folder}:/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    before = env.environ()
    (record,) = SlurmLauncher(tmp_path, {"job_name": "pike", "time": 5}).submit([jobs["worker"]])
    assert record.job_id == "7"
    assert env.environ() == before
    seen = (folder / "env").read_text()
    assert "HOME=/home/me\n" in seen
    for secret in ("SECRET_KEY", "HF_TOKEN", "SBATCH_QOS", "SLURM_JOB_ID", "proxy"):
        assert secret not in seen


def test_a_local_job_is_told_what_to_drop():
    job = Job(kind="worker", name="w", argv=("printenv", "SECRET_KEY"), unset=("SECRET_KEY",))
    done = subprocess.run(job.command, env=SUBMITTER, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
