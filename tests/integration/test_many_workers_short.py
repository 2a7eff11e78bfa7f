"""A hundred workers and one agent, for seconds. `make soak` is the long one: many_workers.py."""

import pytest
from builders.benchmarks import benchmark

pytestmark = [pytest.mark.slow]


def test_a_hundred_workers_are_all_given_work():
    # An answer takes five seconds and a verdict about five: each task comes round in the time.
    words = ("--workers", "100", "--verdict-s", "5", "--seconds", "15")
    _, found, _ = benchmark("many_workers.py", *words)  # no document unless all of them work
    assert found["workers"] == 100
    assert found["verdicts"] > 0
