"""Several tasks share the room for evaluations: each gets its turn before any gets a second.

And when time is up, what the searches still had in the mailbox makes room for their winners.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from builders.searches import by_rules, open_search, task_setup

from pike_hpc.agent import AgentOptions, Controller, run_agent
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.proposers.rules import portfolio
from pike_hpc.records import Correctness, Environment, EvalStatus, LegacyVerdicts, Tier
from pike_hpc.search import Limits, why_unjudgeable
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge, simulated_result

PORTFOLIO = (("identity",), ("compile_default",), ("channels_last", "compile_default"))


def controller(
    run_dir: Path, task_id: str, mailbox: MemoryMailbox, *, max_gpu_s: float = 0.0
) -> Controller:
    task = find_task(f"level3-pike/{task_id}")
    limits = Limits(evaluations=3, max_gpu_s=max_gpu_s)
    setup = task_setup(task, by_rules(PORTFOLIO, limits), limits)
    return open_search(run_dir, setup, mailbox)


def test_no_task_gets_a_second_turn_before_all_had_one(tmp_path):
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=1)
    controllers = [controller(tmp_path, task_id, mailbox) for task_id in ("4", "8", "13", "17")]
    order = []

    def judge_one(_seconds):
        for claim in mailbox.claim("w", frozenset(["cpu"]), limit=1):
            order.append(claim.request.task.id)
            mailbox.judging(claim)
            mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))

    outcome = run_agent(
        controllers,
        AgentOptions(in_flight=1),
        clock=lambda: 0.0,
        sleep=judge_one,
        stopping=lambda: False,
    )
    for one in controllers:
        one.close()
    assert outcome.finished
    assert order[:4] == ["4", "8", "13", "17"]
    assert order[4:8] == ["4", "8", "13", "17"]


def test_at_the_wall_every_task_is_finished_and_nothing_begins(tmp_path):
    mailbox = MemoryMailbox()
    controllers = [controller(tmp_path, task_id, mailbox) for task_id in ("4", "8")]
    now = [0.0]

    def pass_time(_seconds):
        now[0] += 5.0

    outcome = run_agent(
        controllers,
        AgentOptions(in_flight=2, wall_s=60.0),
        clock=lambda: now[0],
        sleep=pass_time,
        stopping=lambda: False,
    )
    for one in controllers:
        one.close()
    assert outcome.finished
    assert all("wall" in (c.view.finished or "") for c in controllers)
    assert mailbox.counts().new == 0, "no worker ever came; nothing is left for one"
    assert now[0] <= 60 + 15


def run_with_a_clock(tmp_path, *, wall_s, verdict_s):
    """Two tasks to the end of a wall budget; the judge passes all, and takes so long for each."""
    mailbox = MemoryMailbox()
    controllers = [controller(tmp_path, task_id, mailbox) for task_id in ("4", "8")]
    now = [0.0]

    def passed(request):
        drawn = (simulated_result(request, seed) for seed in itertools.count())
        return next(verdict for verdict in drawn if verdict.status is EvalStatus.PASSED)

    def judge_one(_seconds):
        now[0] += verdict_s
        for claim in mailbox.claim("w", frozenset(["cpu"]), limit=1):
            mailbox.judging(claim)
            mailbox.commit(claim, replace(passed(claim.request), lane_s=verdict_s))

    outcome = run_agent(
        controllers,
        AgentOptions(in_flight=2, wall_s=wall_s),
        clock=lambda: now[0],
        sleep=judge_one,
        stopping=lambda: False,
    )
    for one in controllers:
        one.close()
    assert outcome.finished
    return [one.view for one in controllers], now[0]


def test_the_best_of_every_task_are_timed_again_before_it_is_finished(tmp_path):
    views, _ = run_with_a_clock(tmp_path, wall_s=0.0, verdict_s=1.0)
    for view in views:
        passed = view.ranked(Tier.HALF)
        assert passed
        assert set(passed) == set(view.retimed), "at most three programs: all of them lead"
        assert view.spent.evaluations == 3
        assert view.finished == view.ended


def test_at_the_wall_there_is_time_left_to_time_the_best_again(tmp_path):
    views, end_s = run_with_a_clock(tmp_path, wall_s=24.0, verdict_s=3.0)
    assert sum(view.spent.evaluations for view in views) < 6, "the search was cut"
    assert any(view.retimed for view in views)
    assert all("wall" in view.finished for view in views)
    assert end_s <= 24.0 + 3.0


def test_a_wall_that_leaves_no_time_finishes_with_what_there_is(tmp_path):
    views, end_s = run_with_a_clock(tmp_path, wall_s=4.0, verdict_s=3.0)
    assert not any(view.retimed for view in views)
    assert end_s <= 4.0 + 15.0


def test_on_a_slow_machine_every_winner_is_timed_again(tmp_path):
    """One lane, 25 s a verdict, 10 minutes, 5 tasks: half the time is enough for all of them."""
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=5)
    ids = ("4", "8", "13", "17", "29")
    controllers = [controller(tmp_path, task_id, mailbox) for task_id in ids]
    now = [0.0]

    def judge_one(_seconds):
        now[0] += 25.0
        for claim in mailbox.claim("w", frozenset(["cpu"]), limit=1):
            mailbox.judging(claim)
            verdict = judge.evaluate(claim.request, lambda _: None)
            mailbox.commit(claim, replace(verdict, lane_s=25.0))

    run_agent(
        controllers,
        AgentOptions(in_flight=2, wall_s=600.0),
        clock=lambda: now[0],
        sleep=judge_one,
        stopping=lambda: False,
    )
    for one in controllers:
        one.close()
    winners = {c.setup.task.id: c.view.ranked(Tier.HALF)[:1] for c in controllers}
    assert sum(map(bool, winners.values())) >= 4, "chance left more than one without any"
    again = {c.setup.task.id: set(c.view.retimed) for c in controllers}
    assert all(set(winner) <= again[task_id] for task_id, winner in winners.items())


def test_what_is_being_judged_when_the_search_ends_still_counts(tmp_path):
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=1)
    one = controller(tmp_path, "4", mailbox)
    one.advance(2)
    (claim,) = mailbox.claim("w", frozenset(["cpu"]))
    mailbox.judging(claim)
    one.end_search("time is up")
    assert mailbox.counts().new == 0
    assert one.in_flight == 1
    mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))
    assert one.collect()
    assert set(one.view.results) == {claim.request.candidate.id}
    while one.advance(1):
        pass
    one.close()
    assert one.retimes_asked == (claim.request.candidate.id in one.view.ranked(Tier.HALF))


def test_an_agent_killed_as_the_search_ended_asks_for_nothing_again(tmp_path):
    mailbox = MemoryMailbox()
    one = controller(tmp_path, "4", mailbox)
    one.advance(2)
    one.end_search("time is up")
    one.close()
    for request_id in one.view.unjudged:
        assert request_id not in mailbox.results(one.view.unjudged)
    next_one = controller(tmp_path, "4", mailbox)
    assert mailbox.counts().new == 0
    assert next_one.in_flight == 0
    assert next_one.advance(1)
    assert next_one.finished, "nothing passed, so nothing is to be timed again"
    next_one.close()


def test_device_time_that_is_used_up_ends_the_search_with_requests_waiting(tmp_path):
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=1)
    one = controller(tmp_path, "4", mailbox, max_gpu_s=10.0)
    one.advance(3)
    assert mailbox.counts().new > 1
    (claim,) = mailbox.claim("w", frozenset(["cpu"]))
    mailbox.judging(claim)
    verdict = judge.evaluate(claim.request, lambda _: None)
    mailbox.commit(claim, replace(verdict, lane_s=11.0))
    assert one.collect()
    assert one.advance(3)
    assert "max_gpu_hours" in (one.view.ended or "")
    assert (mailbox.counts().new, one.in_flight) == (0, 0)
    one.close()


UNJUDGED = {"status": EvalStatus.JUDGE_ERROR, "message": "no room"}
MEASURED = {
    **UNJUDGED,
    "correctness": Correctness(
        relative_error=0.1,
        limit=0.01,
        seeds=3,
        reference_precision="float64",
        legacy=LegacyVerdicts(pike=False, kernelbench=False),
    ),
}


@pytest.mark.parametrize(
    ("hosts", "first", "given_up_after"),
    [
        ("ab", UNJUDGED, 8),
        ("ab", {"status": EvalStatus.BUILD_ERROR}, 9),
        ("ab", {"status": EvalStatus.WRONG_RESULT}, None),
        ("ab", MEASURED, 9),
        ("a", UNJUDGED, None),
    ],
)
def test_a_task_that_nobody_can_judge_ends_with_what_the_judge_said(
    tmp_path, hosts, first, given_up_after
):
    mailbox, limits = MemoryMailbox(), Limits()
    by_all_rules = by_rules(portfolio("cuda"), limits)
    setup = task_setup(find_task("level3-pike/43"), by_all_rules, limits, device_kind="cuda")
    one = open_search(tmp_path, setup, mailbox)
    said, host = itertools.chain([first], itertools.repeat(UNJUDGED)), itertools.cycle(hosts)
    while not one.search_ended:
        one.advance(1 - one.in_flight)
        for claim in mailbox.claim("w", frozenset(["cuda"]), limit=1):
            mailbox.judging(claim)
            mailbox.commit(claim, told(claim.request, host=next(host), **next(said)))
        one.collect()
    gave_up = one.view.ended.endswith("none could be judged, the last because: no room")
    assert gave_up is (given_up_after is not None)
    assert len(one.view.verdicts) == given_up_after or given_up_after is None
    assert len(one.view.verdicts) > 7
    one.close()
    older = one.view.results.items()
    one.view.results = {c: replace(r, key=replace(r.key, judge_version="1")) for c, r in older}
    assert why_unjudgeable(one.view) is None, "another judge may know better"


def told(request, *, status, host, message="", correctness=None):
    """A verdict that says so."""
    rest = {"timing": None, "tier": None, "profile": None, "correctness": correctness}
    where = Environment(device="H200", host=host)
    made = simulated_result(request, 1)
    return replace(made, status=status, message=message, environment=where, **rest)


class Counting:
    """A strategy, and how often it was asked."""

    def __init__(self, strategy):
        self.strategy, self.asked = strategy, 0

    def decide(self, view):
        self.asked += 1
        return self.strategy.decide(view)


def test_a_task_of_which_nothing_new_is_known_costs_nothing(tmp_path):
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=1)
    one = controller(tmp_path, "4", mailbox)
    counting = Counting(one.setup.strategy)
    one.setup = replace(one.setup, strategy=counting)
    while one.advance(1 - one.in_flight):
        pass
    asked = counting.asked
    assert not one.collect()
    assert not one.advance(0)
    assert counting.asked == asked, "the same question has the same answer"
    (claim,) = mailbox.claim("w", frozenset(["cpu"]))
    mailbox.judging(claim)
    mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))
    assert one.collect()
    assert one.advance(1)
    assert counting.asked > asked
    one.close()
