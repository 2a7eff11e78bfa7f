"""The scripts a person submits run the very commands that the launcher runs."""

import subprocess
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"

ECHO = """#!/bin/sh
echo "$PYTHONPATH"
for word; do echo "$word"; done
"""


def run(script, tmp_path, *arguments, **env):
    python = tmp_path / "a python"
    python.write_text(ECHO)
    python.chmod(0o755)
    return subprocess.run(
        ["bash", JOBS / script, *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "env", "words"),
    [
        ("eval_worker.sbatch", {}, ["worker", "RUN"]),
        ("agents.sbatch", {"SLURM_ARRAY_TASK_ID": "0"}, ["agent", "RUN", "--tasks", "1-10"]),
        ("agents.sbatch", {"SLURM_ARRAY_TASK_ID": "4"}, ["agent", "RUN", "--tasks", "41-50"]),
        ("analysis.sbatch", {}, ["report", "RUN"]),
    ],
)
def test_it_runs_the_command_with_the_runs_own_code(tmp_path, script, env, words):
    folder = tmp_path / "a run"
    folder.mkdir()
    done = run(script, tmp_path, folder, **env)
    assert done.returncode == 0, done.stderr
    path, *said = done.stdout.splitlines()
    assert path == f"{folder}/code/lib"
    assert said == ["-P", "-m", "pike_hpc", *(str(folder) if w == "RUN" else w for w in words)]


@pytest.mark.parametrize("script", sorted(p.name for p in JOBS.glob("*.sbatch")))
def test_without_a_run_it_says_how_to_call_it(tmp_path, script):
    done = run(script, tmp_path, SLURM_ARRAY_TASK_ID="0")
    assert done.returncode != 0
    assert "usage: sbatch" in done.stderr
