"""A mailbox that does not answer for a while ends no task: it is told again what it is owed."""

import errno
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from builders.flaky_mailbox import AFTER, BEFORE, OK, FlakyMailbox
from builders.searches import by_rules, open_search, task_setup
from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.agent import AgentOptions, run_agent
from pike_hpc.journal import read_task
from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.files import Files, explained
from pike_hpc.records import Paused
from pike_hpc.search import Limits
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

PORTFOLIO = (("identity",), ("compile_default",), ("channels_last", "compile_default"))
IDS = ("4", "8", "13")
CPU = frozenset(["cpu"])


class Clock:
    """Passes when somebody sleeps; a worker judges one request meanwhile, if it is to."""

    def __init__(self, mailbox, *, judges=True):
        self.now, self._mailbox, self._judges = 0.0, mailbox, judges
        self._judge = SimulatedJudge(device_kind="cpu", seed=1)

    def sleep(self, seconds):
        self.now += seconds
        for claim in self._mailbox.claim("w", CPU) if self._judges else ():
            self._mailbox.judging(claim)
            self._mailbox.commit(claim, self._judge.evaluate(claim.request, lambda _: None))


def sit(folder, mailbox, *, judges=True, **options):
    """One sitting over three tasks; (outcome, its clock, controllers)."""
    clock, limits = Clock(mailbox, judges=judges), Limits(evaluations=3)
    setups = [
        task_setup(find_task(f"level3-pike/{i}"), by_rules(PORTFOLIO, limits), limits) for i in IDS
    ]
    controllers = [open_search(folder, setup, mailbox) for setup in setups]
    outcome = run_agent(
        controllers,
        AgentOptions(**options),
        clock=lambda: clock.now,
        sleep=clock.sleep,
        stopping=lambda: False,
    )
    for one in controllers:
        one.close()
    return outcome, clock, controllers


class Hiccup(Files):
    """Listings of done/ answer EIO from the third on, so many times."""

    def __init__(self, times):
        self.times, self.listings = times, 0

    def names(self, folder):
        if folder.name == "done":
            self.listings += 1
            if 3 <= self.listings < 3 + self.times:
                with explained(folder):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().names(folder)


def test_listings_that_fail_for_a_while_end_nothing(tmp_path):
    files = Hiccup(times=30)
    outcome, _, controllers = sit(tmp_path, FileMailbox(tmp_path / "mailbox", files=files))
    assert outcome.finished
    assert files.listings > 33
    assert all(one.view.spent.evaluations == 3 for one in controllers)
    events = [s.event for i in IDS for s in read_task(tmp_path, f"level3-pike_{i}")]
    assert not any(isinstance(event, Paused) for event in events)


@settings(max_examples=30, deadline=None)
@given(
    fates=st.lists(st.sampled_from([OK, BEFORE, AFTER]), min_size=1, max_size=12).filter(
        lambda fates: OK in fates
    ),
    wall_s=st.sampled_from([0.0, 4.0, 3600.0]),
)
def test_whatever_fails_nothing_is_lost_or_left_behind(fates, wall_s):
    turns = itertools.cycle(fates)
    mailbox = FlakyMailbox(lambda _name: next(turns))
    with tempfile.TemporaryDirectory() as folder:
        outcome, _, controllers = sit(Path(folder), mailbox, in_flight=4, wall_s=wall_s)
        assert outcome.finished
        if wall_s != 4.0:
            assert all(len(one.view.verdicts) == 3 for one in controllers)
            assert mailbox.counts().new == mailbox.counts().claimed == 0


def test_a_mailbox_that_answers_no_more_is_given_up_with_a_message(tmp_path):
    seen = []

    def fate(name):
        seen.append(name)
        return OK if len(seen) < 5 else BEFORE

    outcome, clock, _ = sit(tmp_path, FlakyMailbox(fate), judges=False)
    assert (outcome.finished, outcome.exit_code) == (False, 75)
    assert "does not answer (tried for 60 minutes)" in outcome.reason
    assert "check the file system" in outcome.reason
    assert 3600 <= clock.now < 3700
    again, _, controllers = sit(tmp_path, FlakyMailbox(lambda _: OK))
    assert again.finished
    assert all(one.view.spent.evaluations == 3 for one in controllers)


def test_one_tick_leaves_the_waiting_to_the_next(tmp_path):
    outcome, clock, _ = sit(tmp_path, FlakyMailbox(lambda _: BEFORE), once=True)
    assert (outcome.finished, outcome.exit_code, clock.now) == (False, 75, 0.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_waited_for_here(tmp_path, code):
    full = FlakyMailbox(
        lambda name: BEFORE if name == "put" else OK, OSError(code, os.strerror(code))
    )
    outcome, clock, _ = sit(tmp_path, full)
    assert (outcome.finished, outcome.exit_code) == (False, 75)
    assert clock.now < 5.0
