"""One contract, every mailbox: whose claims are lost, when, and what that counts for."""

from __future__ import annotations

import pytest
from builders.mailboxes import CPU, beat, lose, request, result, take

from pike_hpc.mailbox import Mailbox, QueueCounts
from pike_hpc.records import EvalStatus


def test_deaths_count_only_while_judging(open_mailbox, clock):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    for _ in range(5):
        assert take(worker).attempt == 1
        lose(agent, clock)
    assert agent.counts() == QueueCounts(new=1, claimed=0, done=0, dead=0)


def test_the_dead_letter_is_the_commit(open_mailbox, clock):
    agent, worker = open_mailbox(), open_mailbox()
    sent = request(1)
    agent.put(sent)
    for attempt in (1, 2, 3):
        claim = take(worker)
        assert claim.attempt == attempt
        worker.judging(claim)
        lose(agent, clock)
    assert worker.claim("w", CPU) == ()
    dead = agent.results([sent.request_id])[sent.request_id]
    assert (dead.status, dead.key) == (EvalStatus.WORKER_LOST, sent.key)
    assert not worker.commit(claim, result(sent))
    assert not agent.put(sent)
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=1, dead=1)


def test_a_worker_known_to_be_dead_is_lost_at_once(open_mailbox):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w"))
    take(worker)
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: b.worker_id == "w") == 0
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: None) == 0
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: False) == 1
    assert agent.workers() == ()
    assert agent.counts().new == 1


def test_a_counter_that_stands_still_on_our_clock_is_a_lost_worker(open_mailbox, clock):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w", counter=1))
    take(worker)
    for counter in (2, 3, 4):
        clock.now_s += 50
        worker.beat(beat("w", counter))
        assert agent.requeue_lost(stale_s=60, is_alive=lambda b: None) == 0
    clock.now_s += 59
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: True) == 0
    clock.now_s += 2
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: True) == 1


def sweep(agent: Mailbox) -> int:
    """As an observer on another host does it."""
    return agent.requeue_lost(stale_s=60, is_alive=lambda b: None)


def test_a_silent_worker_whose_job_has_ended_is_lost_long_before_its_time(
    open_mailbox, clock, slurm
):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w", job="7_1.0"))
    worker.judging(take(worker))
    slurm.runs = {"7_1.0": False}
    assert sweep(agent) == 0
    clock.now_s += 14
    assert sweep(agent) == 0
    assert slurm.asked == [], "nobody is suspect yet"
    clock.now_s += 2
    assert sweep(agent) == 1
    assert agent.workers() == ()
    assert take(agent).attempt == 2


def test_a_silent_worker_whose_job_runs_is_lost_after_ten_times_the_patience(
    open_mailbox, clock, slurm
):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w", job="7"))
    take(worker)
    slurm.runs = {"7": True}
    assert sweep(agent) == 0
    for _ in range(59):
        clock.now_s += 10
        assert sweep(agent) == 0
    assert 590 / 15 / 2 < len(slurm.asked) <= 590 / 15
    clock.now_s += 10
    assert sweep(agent) == 1


@pytest.mark.parametrize("says", [None, "no job"])
def test_where_slurm_is_silent_clocks_decide(open_mailbox, clock, slurm, says):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w", job="7" if says is None else None))
    take(worker)
    for _ in range(6):
        assert sweep(agent) == 0
        clock.now_s += 10
    assert sweep(agent) == 1
    assert slurm.asked == ([{"7"}] if says is None else []), "a silent one is asked once"


def test_slurm_is_asked_about_suspects_only_and_by_one_for_all(open_mailbox, clock, slurm):
    agents, worker = [open_mailbox() for _ in range(3)], open_mailbox()
    worker.beat(beat("beats", 1, job="1"))
    worker.beat(beat("silent", 1, job="2"))
    worker.beat(beat("seen", 1, job="3"))
    slurm.runs = {"1": True, "2": True, "3": True}
    for counter in range(2, 20):
        for agent in agents:
            agent.requeue_lost(
                stale_s=60, is_alive=lambda b: True if b.worker_id == "seen" else None
            )
        clock.now_s += 3
        worker.beat(beat("beats", counter, job="1"))
    assert slurm.asked == [{"2"}] * 3


def test_a_worker_whose_job_was_queued_again_and_runs_anew_is_lost_at_once(open_mailbox):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("first", job="7_1.0"))
    take(worker, "first")
    worker.beat(beat("other", job="7_2.0", restarts=1))
    assert sweep(agent) == 0
    worker.beat(beat("second", job="7_1.0", restarts=1))
    assert sweep(agent) == 1
    assert [seen.beat.worker_id for seen in agent.workers()] == ["other", "second"]


def test_a_claim_of_a_worker_that_never_beat_goes_stale(open_mailbox, clock):
    agent, worker = open_mailbox(), open_mailbox()
    agent.put(request(1))
    take(worker)
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: True) == 0
    clock.now_s += 61
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: True) == 1


def test_a_claim_left_by_a_worker_that_retired_goes_stale_from_then_on(open_mailbox, clock):
    worker, agent = open_mailbox(), open_mailbox()
    agent.put(request(1))
    worker.beat(beat("w", 0))
    claim = take(worker)
    assert worker.judging(claim)
    for counter in range(1, 9):
        worker.beat(beat("w", counter))
        assert sweep(agent) == 0
        clock.now_s += 15
    worker.retire("w")
    assert sweep(agent) == 0
    clock.now_s += 59
    assert sweep(agent) == 0
    clock.now_s += 2
    assert sweep(agent) == 1
