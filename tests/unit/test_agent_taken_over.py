"""An agent that was thought dead and wakes leaves the task to the one that took it over."""

import errno
import os

import pytest
from builders.searches import by_rules, open_search, task_setup

from pike_hpc.agent import AgentOptions, Models, Seat, run_agent
from pike_hpc.journal import Held, TaskJournal
from pike_hpc.llm import ScriptedModel, load_script
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import Role, Tier
from pike_hpc.search import Limits, make_strategy
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

PORTFOLIO = (("identity",), ("compile_default",), ("channels_last", "compile_default"))
LIMITS = Limits(queries=6, evaluations=3)
TASK = find_task("level3-pike/4")
CPU = frozenset(["cpu"])


def controller(folder, mailbox, strategy=None, models=None):
    strategy = strategy or by_rules(PORTFOLIO, LIMITS)
    return open_search(folder, task_setup(TASK, strategy, LIMITS), mailbox, models)


def unlock(folder):
    """As a person does who thinks the holder dead."""
    for path in (folder / "journal/locks").glob("*.lock*"):
        path.unlink()


def work(mailbox):
    judge = SimulatedJudge(device_kind="cpu", seed=1)
    for claim in mailbox.claim("w", CPU):
        mailbox.judging(claim)
        mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))


def drive(one, mailbox):
    turns = iter(range(1000))
    return run_agent(
        [one],
        AgentOptions(),
        clock=lambda: 0.0,
        sleep=lambda _: work(mailbox),
        stopping=lambda: next(turns, None) is None,
    )


def test_it_takes_no_verdict_from_under_the_new_one(tmp_path):
    mailbox = MemoryMailbox()
    old = controller(tmp_path, mailbox)
    old.advance(1)
    unlock(tmp_path)
    new = controller(tmp_path, mailbox)
    work(mailbox)
    left = drive(old, mailbox)
    assert (left.finished, left.exit_code) == (False, 75)
    assert "taken the task over" in left.reason
    assert mailbox.counts().done == 1, "the new one's"
    assert drive(new, mailbox).finished
    assert len(new.view.verdicts) == 3
    new.close()
    old.close()


@pytest.mark.parametrize("end", ["end_search", "finish"])
def test_it_takes_no_request_back(tmp_path, end):
    mailbox = MemoryMailbox()
    old = controller(tmp_path, mailbox)
    old.advance(2)
    unlock(tmp_path)
    new = controller(tmp_path, mailbox)
    with pytest.raises(Held):
        old.end_search("time is up")
    if end == "finish":
        with pytest.raises(Held):
            old.finish()
    assert mailbox.counts().new == 2
    assert drive(new, mailbox).finished
    new.close()
    old.close()


class Asked(ScriptedModel):
    def __init__(self):
        super().__init__(load_script("default"))
        self.times = 0

    def complete(self, request):
        self.times += 1
        return super().complete(request)


def test_it_asks_no_model(tmp_path):
    strategy = make_strategy(
        "pike_b", options={}, seed=0, limits=LIMITS, portfolio=(), has_model=True
    )
    model = Asked()
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Models({role: seat for role in Role}, tuple(Tier))
    old = controller(tmp_path, MemoryMailbox(), strategy, models)
    unlock(tmp_path)
    new = controller(tmp_path, MemoryMailbox(), strategy, models)
    assert drive(old, MemoryMailbox()).exit_code == 75
    assert model.times == 0
    assert old.view.spent.queries == 0
    new.close()
    old.close()
    models.close()


def test_who_has_only_an_older_one_before_it_is_the_newest(tmp_path):
    for _ in range(2):
        with TaskJournal.open(tmp_path, "t", writer="w", seed=0, clock=lambda: 0.0) as journal:
            journal.require_newest()


def test_a_journal_that_cannot_be_listed_is_no_takeover(tmp_path):
    with TaskJournal.open(tmp_path, "t", writer="w", seed=0, clock=lambda: 0.0) as journal:
        (tmp_path / "journal").rename(tmp_path / "away")
        (tmp_path / "journal").symlink_to("journal")  # a loop: ELOOP, whoever lists it
        with pytest.raises(Exception, match=os.strerror(errno.ELOOP)) as error:
            journal.require_newest()
        assert not isinstance(error.value, Held)
        (tmp_path / "journal").unlink()
        (tmp_path / "away").rename(tmp_path / "journal")
