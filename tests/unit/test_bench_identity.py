"""What the identity benchmark says that intervals leave out."""

import math
import random

import pytest

pytest.importorskip("torch")

from builders.benchmarks import imported

with imported("identity") as identity:
    pass


def rows(spread, told, count=400):
    """Verdicts on a program as fast as the reference: how far apart, and how far they say."""
    rng = random.Random(1)
    logs = [rng.gauss(0, spread) for _ in range(count)]
    half = 1.96 * told
    speedups = [[math.exp(x) for x in (log, log - half, log + half)] for log in logs]
    return [{"speedups": speedups[:100]}, {}, {"speedups": speedups[100:]}]


def test_intervals_that_say_all_leave_nothing_out():
    assert identity.left_out(rows(0.02, 0.02)) < 0.006
    assert identity.left_out(rows(0.005, 0.02)) == 0.0


def test_what_they_leave_out_is_found():
    assert identity.left_out(rows(math.hypot(0.02, 0.03), 0.02)) == pytest.approx(0.03, abs=0.003)
