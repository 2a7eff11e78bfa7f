"""A soak of a minute, seeded: hostile programs and a killed judge leave nothing, nothing grows.

`make soak` is the long one; both are tests/bench/memory.py.
"""

import pytest
from builders.benchmarks import benchmark

pytest.importorskip("torch")
pytestmark = [pytest.mark.timed, pytest.mark.torch, pytest.mark.slow]

SEED = 385
"""Deals an honest program, one that leaves files, one orphans, one shared memory, one that kills
itself and another honest one, in this order."""


def test_hostile_programs_and_a_killed_judge_leave_nothing():
    words = ["--device", "cpu", "--kinds", "torch", "--hostile", "--seed", str(SEED)]
    code, found, said = benchmark(
        "memory.py", *words, "--evaluations", "6", "--kill-judge", "5", "--seconds", "150"
    )
    assert code == 0, said
    assert found["evaluations"] >= 4, "too slow a machine to say anything"
    assert found["statuses"].get("PASSED", 0) >= 2, found["statuses"]
    left = found["left"]
    assert (left["children"], left["orphans"], left["folders"]) == (0, 0, 0)
    assert left["shared_memory"] == 0


def test_the_throughput_benchmark_counts_what_the_worker_judged():
    words = ["--device", "cpu", "--kinds", "torch,broken", "--seconds", "45"]
    code, found, said = benchmark("throughput.py", *words)
    assert code == 0, said
    one = found["gpus"]["1"]
    assert one["judges"] == 1
    in_time = one["cold"]["verdicts"] + one["warm"]["verdicts"]
    assert sum(one["statuses"].values()) >= max(1, in_time), "what was under way is drained"
    assert one["surprises"] == []
    for half in (one["cold"], one["warm"]):
        phases = half["judge_s_by_phase"].values()
        assert not phases or sum(p["part"] for p in phases) == pytest.approx(1.0, abs=0.02)
    assert one["cold"]["judge_s_by_phase"] or one["warm"]["judge_s_by_phase"]
