"""Any order of operations, kills and disk errors; the model is in builders/mailbox_machine.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from builders.faulty_files import FAULTS, FaultyFiles
from builders.mailbox_machine import MailboxMachine, die
from builders.mortal_files import MortalFiles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from pike_hpc.records import TryAgainLater

R = TypeVar("R")


class DirectoryMailboxMachine(MailboxMachine):
    """The same where results are committed by renaming folders."""

    commit = "directory"


class RenamingMailboxMachine(MailboxMachine):
    """The same where results are committed by renameat2."""

    commit = "renameat2"


class ShardedMailboxMachine(MailboxMachine):
    """The same where waiting requests are dealt to several folders."""

    shards = 3


class FaultyMailboxMachine(MailboxMachine):
    """The same on disks on which a step may go wrong: TryAgainLater is said, and a new try helps.

    No other error may come out, and no request may hang on a claim that nobody was told of.
    """

    def new_files(self) -> MortalFiles:
        return FaultyFiles(die)

    random: random.Random | None = None

    @initialize(seed=st.integers(0, 2**32))
    def some_steps_fail(self, seed: int) -> None:
        self.random = random.Random(seed)

    def attempt(self, files: MortalFiles, call: Callable[[], R]) -> R:
        assert isinstance(files, FaultyFiles)
        files.armed, files.met = True, None
        if self.random is not None and self.random.random() < 0.5:
            files.plan(self.random.randrange(7), self.random.choice(FAULTS))
        try:
            return call()
        except TryAgainLater:
            assert files.met is not None, "a disk that does not fail was said to"
            return call()
        finally:
            self.troubled = files.met is not None
            files.armed = False
            files.forget()


class FaultyDirectoryMailboxMachine(FaultyMailboxMachine):
    """All of it."""

    commit = "directory"
    shards = 3


PATIENT = settings(
    max_examples=40,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMailboxMachine = MailboxMachine.TestCase
TestMailboxMachine.settings = PATIENT
TestDirectoryMailboxMachine = DirectoryMailboxMachine.TestCase
TestDirectoryMailboxMachine.settings = PATIENT
TestRenamingMailboxMachine = RenamingMailboxMachine.TestCase
TestRenamingMailboxMachine.settings = PATIENT
TestShardedMailboxMachine = ShardedMailboxMachine.TestCase
TestShardedMailboxMachine.settings = PATIENT
TestFaultyMailboxMachine = FaultyMailboxMachine.TestCase
TestFaultyMailboxMachine.settings = PATIENT
TestFaultyDirectoryMailboxMachine = FaultyDirectoryMailboxMachine.TestCase
TestFaultyDirectoryMailboxMachine.settings = PATIENT
