"""Every kind of mailbox, for each test that wants one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.mailboxes import KINDS, Clock, Slurm, opener

from pike_hpc.mailbox import Mailbox


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture(params=KINDS)
def open_mailbox(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, slurm: Slurm
) -> Callable[[], Mailbox]:
    return opener(request.param, tmp_path, clock, slurm)


@pytest.fixture
def mailbox(open_mailbox: Callable[[], Mailbox]) -> Mailbox:
    return open_mailbox()
