"""A hundred workers and one agent, for seconds. `make soak` is the long one: many_workers.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow]

BENCH = Path(__file__).resolve().parents[1] / "bench" / "many_workers.py"


def test_a_hundred_workers_are_all_given_work():
    words = ("--workers", "100", "--verdict-s", "5", "--seconds", "5")
    done = subprocess.run(
        [sys.executable, str(BENCH), *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout, done.stderr  # that each had a verdict, or it says who had none
    found = json.loads(done.stdout)
    assert found["workers"] == 100
    assert found["verdicts"] > 0
