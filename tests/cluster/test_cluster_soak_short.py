"""A disturbed cluster for half a minute, seeded. `make soak` is the long one: cluster_soak.py."""

import json
import subprocess
import sys

import pytest
from builders.devcluster import REPO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_that_chance_disturbs_ends_like_any_other(slurm):
    words = ("--suite", "level0", "--minutes", "0.5", "--seed", "5")
    done = subprocess.run(
        [sys.executable, str(REPO / "tests/bench/cluster_soak.py"), *words],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"] == found["runs_that_ended_like_an_undisturbed_one"] >= 1
    assert sum(found["hits"].values()) >= 2, found
