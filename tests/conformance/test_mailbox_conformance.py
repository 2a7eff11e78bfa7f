"""One contract, every mailbox: in memory, and in a folder by each way to commit and to lock."""

from __future__ import annotations

import dataclasses

import pytest
from builders.mailboxes import CPU, beat, lose, request, result, take

from pike_hpc.mailbox import QueueCounts

GPU = frozenset({"NVIDIA H200 (141 GB)"})


def test_a_request_comes_out_as_it_went_in_and_its_result_too(mailbox):
    sent = request(1)
    assert mailbox.put(sent)
    claim = take(mailbox)
    assert (claim.request, claim.attempt) == (sent, 1)
    assert mailbox.judging(claim)
    assert mailbox.results([sent.request_id]) == {}
    verdict = result(sent, "späť")
    assert mailbox.commit(claim, verdict)
    assert mailbox.results([sent.request_id, "f" * 32]) == {sent.request_id: verdict}
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)


def test_put_is_idempotent_while_new_claimed_and_done(open_mailbox):
    agent, worker, sent = open_mailbox(), open_mailbox(), request(1)
    assert agent.put(sent)
    assert not agent.put(sent)
    claim = take(worker)
    assert not agent.put(sent)
    worker.judging(claim)
    assert not agent.put(sent)
    worker.commit(claim, result(sent))
    assert not agent.put(sent)
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)
    agent.discard([sent.request_id])
    assert agent.put(sent)


def test_many_are_put_at_once_and_each_is_told_whether_it_is_new(open_mailbox):
    agent, worker, sent = open_mailbox(), open_mailbox(), [request(i) for i in range(40)]
    agent.put(sent[3])
    assert agent.put_many([]) == ()
    told = worker.put_many([*sent, sent[0]])
    assert told == (*(i != 3 for i in range(40)), False)
    claims = worker.claim("w", CPU, 100)
    assert [c.request for c in claims] == [sent[3], *(r for r in sent if r is not sent[3])]
    assert {c.attempt for c in claims} == {1}
    assert agent.put_many(sent) == (False,) * 40


def test_many_are_committed_at_once_and_each_stands_or_falls_by_itself(open_mailbox, clock):
    agent, slow, fast = open_mailbox(), open_mailbox(), open_mailbox()
    sent = [request(i) for i in range(20)]
    agent.put_many(sent)
    old = slow.claim("slow", CPU, 20)
    agent.requeue_lost(stale_s=60, is_alive=lambda b: None)
    clock.now_s += 61
    assert agent.requeue_lost(stale_s=60, is_alive=lambda b: None) == 20
    (new,) = fast.claim("fast", CPU)
    assert fast.commit_many([(new, result(sent[0], "fast")), (new, result(sent[0]))]) == (
        True,
        False,
    )
    agent.discard([sent[0].request_id])
    (other,) = fast.claim("fast", CPU)
    assert fast.commit(other, result(sent[1], "fast"))
    judged = [(c, result(c.request, "slow")) for c in old]
    assert slow.commit_many([]) == ()
    assert slow.commit_many(judged) == (False, False, *([True] * 18))
    found = agent.results([r.request_id for r in sent])
    assert [found[r.request_id].message for r in sent[1:]] == ["fast"] + ["slow"] * 18
    assert fast.claim("fast", CPU, 20) == ()
    agent.discard(list(found))
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=0, dead=0)
    assert agent.put_many(sent) == (True,) * 20


def test_one_result_that_does_not_fit_keeps_all_from_being_committed(mailbox):
    mailbox.put_many([request(1), request(2)])
    first, second = mailbox.claim("w", CPU, 2)
    with pytest.raises(ValueError, match="for the request"):
        mailbox.commit_many([(first, result(request(1))), (second, result(request(1)))])
    assert mailbox.counts() == QueueCounts(new=0, claimed=2, done=0, dead=0)


def test_requests_are_claimed_in_the_order_of_their_putting(mailbox):
    sent = [request(i) for i in range(12)]
    for one in sent:
        mailbox.put(one)
    first = mailbox.claim("w", CPU, limit=5)
    second = mailbox.claim("v", CPU, limit=100)
    assert [c.request for c in first + second] == sent
    assert mailbox.claim("w", CPU) == ()


def test_a_released_request_goes_back_to_its_place(mailbox):
    sent = [request(i) for i in range(3)]
    for one in sent:
        mailbox.put(one)
    claim = take(mailbox)
    mailbox.judging(claim)
    mailbox.release(claim)
    again = mailbox.claim("v", CPU, limit=3)
    assert [(c.request, c.attempt) for c in again] == [(one, 1) for one in sent]


def test_a_release_after_a_try_counts_it_and_buries_nothing(mailbox):
    sent = request(1)
    mailbox.put(sent)
    attempts = []
    for _ in range(5):
        claim = take(mailbox)
        assert mailbox.judging(claim)
        attempts.append(claim.attempt)
        mailbox.release(claim, tried=True)
    assert attempts == [1, 2, 3, 3, 3]
    assert mailbox.counts().new == 1


def test_only_a_worker_with_the_device_claims(mailbox):
    mailbox.put(request(1, device_kind="NVIDIA H200 (141 GB)"))
    mailbox.put(request(2))
    assert [c.request for c in mailbox.claim("w", CPU, 10)] == [request(2)]
    assert mailbox.claim("w", frozenset({"NVIDIA H200 (141 GB"}), 10) == ()
    (claim,) = mailbox.claim("w", GPU | {"other"}, 10)
    assert claim.request.device_kind == "NVIDIA H200 (141 GB)"


def test_the_first_commit_stands(open_mailbox, clock):
    agent, slow, fast = open_mailbox(), open_mailbox(), open_mailbox()
    sent = request(1)
    agent.put(sent)
    old = take(slow, "slow")
    slow.judging(old)
    lose(agent, clock)
    new = take(fast, "fast")
    assert new.attempt == 2
    assert fast.commit(new, result(sent, "fast"))
    assert not slow.commit(old, result(sent, "slow"))
    assert agent.results([sent.request_id])[sent.request_id].message == "fast"
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)


def test_the_commit_of_a_worker_taken_for_dead_still_stands(open_mailbox, clock):
    agent, slow, other = open_mailbox(), open_mailbox(), open_mailbox()
    sent = request(1)
    agent.put(sent)
    old = take(slow, "slow")
    slow.judging(old)
    lose(agent, clock)
    assert agent.waiting() == 1
    assert agent.counts().new == 1
    assert slow.commit(old, result(sent, "slow"))
    assert other.claim("other", CPU) == ()
    assert agent.results([sent.request_id])[sent.request_id].message == "slow"
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)


def test_a_discarded_request_takes_no_late_commit(open_mailbox, clock):
    agent, slow, fast = open_mailbox(), open_mailbox(), open_mailbox()
    sent = request(1)
    agent.put(sent)
    old = take(slow, "slow")
    lose(agent, clock)
    new = take(fast, "fast")
    assert slow.commit(old, result(sent))
    agent.discard([sent.request_id])
    assert not fast.judging(new)
    assert not fast.commit(new, result(sent))
    assert agent.results([sent.request_id]) == {}
    assert agent.counts() == QueueCounts(new=0, claimed=0, done=0, dead=0)


def test_a_lost_claim_can_neither_be_judged_nor_released(open_mailbox, clock):
    agent, slow, fast = open_mailbox(), open_mailbox(), open_mailbox()
    agent.put(request(1))
    old = take(slow, "slow")
    lose(agent, clock)
    new = take(fast, "fast")
    assert not slow.judging(old)
    slow.release(old)
    assert fast.judging(new)
    assert agent.waiting() == 0
    assert agent.counts() == QueueCounts(new=0, claimed=1, done=0, dead=0)


def test_a_result_of_another_request_is_refused(mailbox):
    mailbox.put(request(1))
    claim = take(mailbox)
    with pytest.raises(ValueError, match="for the request"):
        mailbox.commit(claim, result(request(2)))
    assert mailbox.counts().claimed == 1


def test_workers_are_seen_until_they_retire(open_mailbox):
    reader, writer = open_mailbox(), open_mailbox()
    full = dataclasses.replace(
        beat("a.b/c d\n"), state="judging", request_id="f" * 32, walltime_end=5.5, phase="load"
    )
    writer.beat(beat("z"))
    writer.beat(beat("a.b/c d\n"))
    writer.beat(full)
    assert [seen.beat for seen in reader.workers()] == [full, beat("z")]
    assert all(0 <= seen.age_s < 60 for seen in reader.workers())
    writer.retire("z")
    writer.retire("z")
    assert [seen.beat for seen in reader.workers()] == [full]


def test_closing_and_reopening(open_mailbox):
    agent, worker = open_mailbox(), open_mailbox()
    assert not worker.closed()
    agent.close()
    agent.close()
    assert worker.closed()
    agent.reopen()
    agent.reopen()
    assert not worker.closed()


def test_discarding_what_is_not_there_does_nothing(mailbox):
    mailbox.put(request(1))
    mailbox.discard([request(2).request_id])
    assert mailbox.counts().new == 1


def test_what_nobody_has_begun_to_judge_can_be_withdrawn(open_mailbox):
    agent, worker = open_mailbox(), open_mailbox()
    begun, held, waiting, done, other = (request(n) for n in range(5))
    for one in (done, begun, held, waiting, other):
        agent.put(one)
    worker.commit(take(worker), result(done))
    begun_claim, held_claim = worker.claim("w", CPU, limit=2)
    assert worker.judging(begun_claim)
    asked = [one.request_id for one in (begun, held, waiting, done)]
    assert agent.withdraw([*asked, "0" * 64]) == {begun.request_id, done.request_id}
    assert not worker.judging(held_claim), "its claim is lost"
    worker.release(held_claim)
    assert take(worker).request == other
    assert worker.claim("w", CPU) == ()
    assert worker.commit(begun_claim, result(begun))
    assert set(agent.results(asked)) == {begun.request_id, done.request_id}
    assert agent.put(waiting), "it is as if it had never been asked"


def test_withdrawing_nothing_does_nothing(mailbox):
    mailbox.put(request(1))
    assert mailbox.withdraw([]) == frozenset()
    assert mailbox.counts().new == 1
