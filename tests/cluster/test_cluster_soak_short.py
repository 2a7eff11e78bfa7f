"""A disturbed cluster for half a minute, seeded. `make soak` is the long one: cluster_soak.py."""

import pytest
from builders.benchmarks import benchmark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = 21
"""Deals a preemption, a killed agent, a killed worker and an outage of the controller first."""


def test_a_run_that_chance_disturbs_ends_like_any_other(slurm):
    words = ("--suite", "level0", "--minutes", "0.5", "--seed", str(SEED))
    code, found, said = benchmark("cluster_soak.py", *words, timeout_s=800)
    assert code == 0, said
    assert found["runs"] == found["runs_that_ended_like_an_undisturbed_one"] >= 1
    assert sum(found["hits"].values()) >= 2, found
