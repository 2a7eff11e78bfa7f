"""The parts of a worker that need no mailbox: pauses, percentiles, simulated verdicts, options."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pike_hpc.records import EvalRequest, EvalStatus, Task, Tier, UsageError, to_json
from pike_hpc.worker import SimulatedJudge, WorkerOptions, simulated_result
from pike_hpc.worker.pace import Backoff, Durations, Tally

TASK = Task(suite="s", id="1", name="one", source="x", calibration_version=2)
"""Of one calibration, whatever is today's: a verdict that is pinned below depends on the digest."""


def request(number: int, tiers: tuple[Tier, ...] = tuple(Tier)) -> EvalRequest:
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}", device_kind="cpu", image_digest="i", tiers=tiers
    )


def test_pauses_double_with_jitter_up_to_the_longest_and_start_over():
    backoff = Backoff(1.0, 8.0, random.Random(0))
    for length in (1, 2, 4):
        assert 0.5 * length <= backoff.pause_s() <= 1.5 * length
    for _ in range(100):
        assert 0.95 * 8 <= backoff.pause_s() <= 1.05 * 8
    backoff.reset()
    assert backoff.pause_s() <= 1.5


def test_the_95th_percentile_of_what_was_seen():
    durations = Durations(expected_s=60)
    assert durations.p95_s() == 60
    durations.add(3.0)
    assert durations.p95_s() == 3.0
    for i in range(100):
        durations.add(float(i))
    assert 94 <= durations.p95_s() <= 96


def test_a_stale_limit_below_three_heartbeats_is_refused():
    with pytest.raises(UsageError, match="living workers"):
        WorkerOptions(worker_id="w", heartbeat_s=30, stale_s=60)


def test_a_simulated_verdict_depends_on_seed_and_candidate_only():
    phases = []
    judge, again = SimulatedJudge("cpu", seed=3), SimulatedJudge("cpu", seed=3)
    order = list(range(50))
    first = {i: judge.evaluate(request(i), phases.append) for i in order}
    second = {i: again.evaluate(request(i), phases.append) for i in reversed(order)}
    assert first == second
    assert phases[:4] == ["build", "load", "check", "time"]
    assert any(simulated_result(request(i), 4) != first[i] for i in order)
    # The same in every Python: campaigns with cassettes depend on it.
    assert simulated_result(request(0), 0).status is EvalStatus.PASSED
    assert f"{simulated_result(request(0), 0).timing.speedup:.6f}" == PINNED_SPEEDUP


PINNED_SPEEDUP = "1.425827"


def test_simulated_verdicts_are_a_plausible_mix_and_all_marked():
    results = [simulated_result(request(i), 0) for i in range(2000)]
    share = Counter(r.status for r in results)
    assert 0.66 < share[EvalStatus.PASSED] / 2000 < 0.74
    assert set(share) == set(EvalStatus) - {EvalStatus.WORKER_LOST, EvalStatus.JUDGE_ERROR}
    assert all(r.simulated and r.message.startswith("SIMULATED") for r in results)
    assert all(r.request_id == request(i).request_id for i, r in enumerate(results))
    passed = [r for r in results if r.status is EvalStatus.PASSED]
    assert {r.tier for r in passed} == set(Tier)
    assert len({r.timing.reference_ms for r in passed}) == 1
    assert all(r.timing.ci95[0] < r.timing.speedup < r.timing.ci95[1] for r in passed)
    assert all(r.correctness.relative_error < r.correctness.limit for r in passed)
    assert to_json(results[0])


def test_a_simulated_verdict_keeps_to_the_tiers_asked_for():
    results = [simulated_result(request(i, (Tier.TF32,)), 0) for i in range(50)]
    assert {r.tier for r in results if r.tier} == {Tier.TF32}


def test_a_lane_says_what_its_time_went_into():
    now = [0.0]
    tally = Tally(lambda: now[0])
    for doing, lasts_s in (("build", 2.0), ("timing", 5.0), ("build", 1.0), ("idle", 1.0)):
        tally.enter(doing)
        now[0] += lasts_s
    assert tally.text() == "timing 5 s, build 3 s, idle 1 s"
