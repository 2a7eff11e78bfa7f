"""The scripts a person submits are what the launcher renders: options, setup lines, commands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from pike_hpc.cli.run import Run, tasks_of
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.launch import dry_run, plan_jobs, slurm_parameters, write_scripts
from pike_hpc.launch.exports import handed_over

JOBS = Path(__file__).parents[2] / "jobs"

WORKFLOW = """
schema_version: 1
name: by-hand
tasks: {suite: level3-pike, ids: "1-50"}
search: {strategy: pike_b}
budget: {max_usd: 1}
models:
  optimise: {provider: openai, model: some-model, key_env: OF_THE_PROFILE}
  fix: {provider: openai, model: some-model, key_env: OF_THE_SETUP}
"""

SITE = """
schema_version: 1
name: here
scheduler: slurm
paths: {work: "runs"}
account: m1
worker_job: {gpus: 2, cpus: 16, walltime_minutes: 720, qos: q, constraint: c, partition: p}
agent: {where: array, cpus: 2, walltime_minutes: 1440, qos: q, constraint: c, partition: p}
setup: ["export SET_UP=yes OF_THE_SETUP=sk-2", "set_up_is_called() { :; }"]
"""

OF_THE_SITE = {"account", "qos", "constraint", "partition", "gpus-per-node", "output", "array"}
"""What a person gives beside the script, or Slurm by itself."""

ECHO = """#!/bin/sh
echo "$SET_UP $PYTHONUNBUFFERED $PYTHONPATH"
echo "keys: $OF_THE_PROFILE $OF_THE_SETUP"
for word; do echo "$word"; done
"""


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "a python"
    path.write_text(ECHO)
    path.chmod(0o755)
    return path


@pytest.fixture
def resolved(tmp_path):
    (tmp_path / "w.yaml").write_text(WORKFLOW)
    (tmp_path / "here.yaml").write_text(SITE)
    places = {"sites_dir": sites_dir({}), "user_config_dir": tmp_path}
    return resolve(tmp_path / "w.yaml", str(tmp_path / "here.yaml"), environ={}, **places)


@pytest.fixture
def run(resolved, tmp_path):
    return Run.create(tmp_path / "a run", resolved, tasks_of(resolved)[0])


@pytest.fixture
def plan(run, resolved, python):
    """(workers, agents), as submit has them."""
    ids = [task.id for task in run.tasks]
    lib = run.dir / "code" / "lib"
    return plan_jobs(resolved, run.dir, ids, python=str(python), lib=lib, python_path="/more")


def by_hand(script, *arguments, **env):
    return subprocess.run(
        ["bash", JOBS / script, *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin", "OF_THE_PROFILE": "sk-1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def options(text):
    """#SBATCH lines, by name; "" of one that has no value."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.M))


@pytest.mark.parametrize(
    ("script", "kind", "also_of_the_site"),
    [
        # How many CPUs belong to a GPU is the site's.
        ("eval_worker.sbatch", "worker", {"cpus-per-task"}),
        ("agents.sbatch", "agent", set()),
    ],
)
def test_its_options_are_the_launchers(resolved, plan, tmp_path, script, kind, also_of_the_site):
    jobs = {"worker": plan[0], "agent": plan[1]}[kind]
    rendered = options(dry_run(tmp_path, jobs, slurm_parameters(resolved, kind, f"pike-{kind}")))
    wanted = {k: v for k, v in rendered.items() if k not in OF_THE_SITE | also_of_the_site}
    # There is no step between the batch shell and the command, so the shell is the one to signal.
    wanted["signal"] = f"B:{wanted['signal']}"
    assert options((JOBS / script).read_text()) == wanted


def words_of(job):
    """What the stand-in for Python prints for the launcher's command of a job."""
    env = {"SET_UP": "yes", "OF_THE_PROFILE": "sk-1", "OF_THE_SETUP": "sk-2"}
    done = subprocess.run(job.command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_its_setup_lines_and_commands_are_the_launchers(run, resolved, plan):
    workers, agents = plan
    write_scripts(run.dir, resolved, agents[0])
    done = by_hand("eval_worker.sbatch", run.dir)
    assert done.stdout.splitlines() == words_of(workers[0]), done.stderr
    assert len(agents) == 3
    for n, agent in enumerate(agents):
        done = by_hand("agents.sbatch", run.dir, SLURM_ARRAY_TASK_ID=str(n))
        assert done.stdout.splitlines() == words_of(agent), done.stderr
    rendered = dry_run(run.dir, agents[:1], slurm_parameters(resolved, "agent", "pike-agent"))
    setup = rendered.partition("# setup\n")[2].partition("\n\n")[0]
    assert setup in (run.dir / "slurm" / "setup.sh").read_text()
    assert shlex.join(agents[0].command) in rendered


def test_the_analysis_has_the_same_setup_and_code(run, resolved, plan):
    write_scripts(run.dir, resolved, plan[1][0])
    done = by_hand("analysis.sbatch", run.dir, "/other")
    wanted = ["-P", "-m", "pike_hpc", "report", str(run.dir), "/other"]
    assert done.stdout.splitlines() == [*words_of(plan[1][0])[:2], *wanted]


def test_a_run_that_was_never_submitted_to_slurm_needs_only_an_interpreter(run, python):
    done = by_hand("eval_worker.sbatch", run.dir, PYTHON=str(python))
    wanted = ["-P", "-m", "pike_hpc", "worker", str(run.dir)]
    assert done.stdout.splitlines() == [f" 1 {run.dir}/code/lib", "keys:  ", *wanted]


OF_SLURM = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
EXPORTED = {
    **{"HOME": "/home/me", "LC_ALL": "C", "OF_THE_SETUP": "sk-2", "OF_A_STRANGER": "sk-3"},
    **{"SBATCH_QOS": "premium", "https_proxy": "http://me:secret@proxy"},
    # The script has variables of these names itself.
    **{"run": "mine", "given": "mine", "name": "mine", "pattern": "mine", "keys": "mine"},
    "BASH_FUNC_module%%": "() {  true\n}",
}


@pytest.mark.parametrize("submitted", [True, False])
def test_a_worker_by_hand_gets_what_it_would_get_of_submit(
    run, resolved, plan, tmp_path, submitted
):
    """And what Slurm sets; no key, of whatever model, from wherever. An agent gets all."""
    workers, agents = plan
    if submitted:
        write_scripts(run.dir, resolved, agents[0])
    program = tmp_path / "prints its environment"
    program.write_text("#!/bin/bash\nexec env -0\n")
    program.chmod(0o755)
    given = EXPORTED | OF_SLURM | {"PYTHON": str(program), "SLURM_ARRAY_TASK_ID": "0"}
    seen = {}
    for script in ("eval_worker.sbatch", "agents.sbatch"):
        done = by_hand(script, run.dir, **given)
        assert done.returncode == 0, done.stderr
        seen[script] = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    worker = seen["eval_worker.sbatch"]
    exported = EXPORTED | {"PATH": "/usr/bin:/bin", "OF_THE_PROFILE": "sk-1"}
    of_submit = handed_over(exported, workers[0].exports, workers[0].unset)
    assert set(of_submit) == {"HOME", "LC_ALL", "PATH", "BASH_FUNC_module%%"}
    wanted = of_submit | OF_SLURM | {"PYTHON": str(program), "SLURM_ARRAY_TASK_ID": "0"}
    assert wanted.items() <= worker.items()
    of_the_script = {"PYTHONPATH", "PYTHONUNBUFFERED", "PWD"} | ({"SET_UP"} if submitted else set())
    of_the_shell = {"_", "SHLVL"}
    assert worker.keys() - of_the_shell == wanted.keys() | of_the_script
    assert exported.keys() - {"run"} <= seen["agents.sbatch"].keys()
    assert seen["agents.sbatch"]["OF_A_STRANGER"] == "sk-3"


@pytest.mark.parametrize("names", ["keys.txt", "exports.txt"])
def test_a_worker_by_hand_starts_nothing_where_its_list_of_names_is_gone(run, python, names):
    (run.dir / "code" / names).unlink()
    done = by_hand("eval_worker.sbatch", run.dir, PYTHON=str(python))
    assert (done.returncode, done.stdout) == (1, "")
    assert names in done.stderr


def test_an_array_that_is_too_long_says_how_long_it_may_be(run):
    done = by_hand("agents.sbatch", run.dir, SLURM_ARRAY_TASK_ID="3")
    assert done.returncode != 0
    assert "fewer ranges: --array=0-2" in done.stderr


@pytest.mark.parametrize("script", sorted(p.name for p in JOBS.glob("*.sbatch")))
def test_without_a_run_it_says_how_to_call_it(script):
    done = by_hand(script, SLURM_ARRAY_TASK_ID="0")
    assert done.returncode != 0
    assert "usage: sbatch" in (line := only_line(done.stderr)), line


@pytest.mark.parametrize("script", sorted(p.name for p in JOBS.glob("*.sbatch")))
@pytest.mark.parametrize("place", ["nowhere/run", "."])
def test_what_is_no_run_is_said_and_nothing_is_started(script, place, python, tmp_path):
    done = by_hand(script, tmp_path / place, SLURM_ARRAY_TASK_ID="0", PYTHON=str(python))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / place} is no run folder" in only_line(done.stderr)


def test_agents_that_are_no_array_say_so(run, python):
    done = by_hand("agents.sbatch", run.dir, PYTHON=str(python))
    assert done.returncode != 0
    assert "submit as an array" in only_line(done.stderr)


def only_line(text):
    (line,) = text.splitlines()
    return line
