"""What the memory benchmark calls growth."""

import pytest

pytest.importorskip("torch")

from builders.benchmarks import imported

with imported("memory") as memory:
    pass

RUNNER_FILES = 14
"""What one that waits holds open."""


def sample(files, waiting=0):
    return memory.Sample(
        rss_mb=0.0,
        fds=files + RUNNER_FILES * waiting,
        processes=20 + 3 * waiting,
        gpu_mb=None,
        gpu_judge_mb=None,
        gpu_runner_mb=None,
    )


def grown(samples):
    return memory.grown(samples, lambda seen: seen.fds)


def test_a_runner_more_that_waits_is_no_growth():
    early = [sample(100, waiting=number % 3 == 0) for number in range(75)]
    late = [sample(100, waiting=number % 3 != 0) for number in range(25)]
    assert grown([*early, *late]) == 0


def test_what_each_evaluation_leaves_is():
    leaking = [sample(100 + number, waiting=number % 3 == 0) for number in range(100)]
    assert 45 <= grown(leaking) <= 55


def test_where_no_count_of_processes_comes_again_all_are_compared():
    assert grown([sample(100 + 20 * n, waiting=n) for n in range(8)]) > 0
