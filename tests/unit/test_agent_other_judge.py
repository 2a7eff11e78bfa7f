"""A run that goes on with another judge, such as another torch, waits for no verdict of the old."""

from dataclasses import replace

import pytest
from builders.searches import by_rules, open_search, task_setup

from pike_hpc.agent import AgentOptions, run_agent
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.search import Limits
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

PORTFOLIO = (("identity",), ("compile_default",), ("channels_last", "compile_default"))
LIMITS = Limits(evaluations=3)
CPU = frozenset(["cpu"])


def controller(folder, torch, mailbox):
    made = task_setup(find_task("level3-pike/4"), by_rules(PORTFOLIO, LIMITS), LIMITS)
    return open_search(folder, replace(made, image_digest=f"host:torch-{torch}"), mailbox)


def work(mailbox, limit=1):
    judge = SimulatedJudge(device_kind="cpu", seed=1)
    for claim in mailbox.claim("w", CPU, limit=limit):
        mailbox.judging(claim)
        mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))


def until(folder, mailbox, reached):
    """An agent with the first torch, until the state is reached."""
    one = controller(folder, "2.12.0", mailbox)
    while not reached(one):
        one.collect()
        one.advance(2 - one.in_flight)
        if not reached(one):
            work(mailbox)
    one.close()
    assert one.in_flight
    return one.in_flight


@pytest.mark.parametrize("keeps_mailbox", [True, False])
@pytest.mark.parametrize(
    "reached", [lambda c: c.in_flight == 2, lambda c: c.view.retiming], ids=["search", "retime"]
)
def test_it_asks_anew_for_what_was_in_flight(tmp_path, reached, keeps_mailbox):
    mailbox = MemoryMailbox()
    waiting = until(tmp_path, mailbox, reached)
    mailbox = mailbox if keeps_mailbox else MemoryMailbox()
    two = controller(tmp_path, "2.13.0", mailbox)
    assert two.in_flight == waiting
    assert mailbox.counts().new == waiting, "what the old judge was asked is forgotten"
    turns = iter(range(1000))
    outcome = run_agent(
        [two],
        AgentOptions(),
        clock=lambda: 0.0,
        sleep=lambda _: work(mailbox),
        stopping=lambda: next(turns, None) is None,
    )
    two.close()
    assert outcome.finished
    assert two.view.spent.evaluations == 3, "one that is asked again counts once"
    assert len(two.view.verdicts) == 3
    assert mailbox.counts().new == mailbox.counts().done == 0


def test_the_same_judge_is_not_asked_anew(tmp_path):
    mailbox = MemoryMailbox()
    until(tmp_path, mailbox, lambda c: c.in_flight == 2)
    asked = mailbox.counts()
    two = controller(tmp_path, "2.12.0", mailbox)
    assert mailbox.counts() == asked
    two.close()
