"""Runners started ahead: taken in order, given their role, never one that has died waiting."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_room import ROOM_BYTES
from pike_hpc.evaluate.judge_spares import AT_ONCE, SPARES, Spares
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wards import Wards
from pike_hpc.evaluate.wire import RunnerRole

pytestmark = pytest.mark.torch


class Lane:
    """What a judge asks of its lane about runners."""

    def __init__(self, folder: Path) -> None:
        self.roles: dict[int, RunnerRole] = {}
        self.ended: set[int] = set()
        self.killed: list[int] = []
        self.notes: list[str] = []
        self._folder, self._places = folder, 0

    def place(self) -> Path:
        self._places += 1
        made = self._folder / str(self._places)
        made.mkdir()
        return made

    def spawn(self, role: RunnerRole, socket: Path) -> int:
        number = len(self.roles) + 1
        self.roles[number] = role
        return number

    def appoint(self, runner: int, role: RunnerRole) -> None:
        self.roles[runner] = role

    def has_ended(self, runner: int) -> bool:
        return runner in self.ended

    def kill(self, runner: int, grace_s: float) -> None:
        self.killed.append(runner)

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture
def lane(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Lane(Path())  # a socket's path has 107 bytes at most


def taken(spares: Spares, role: RunnerRole) -> int:
    """The number of the runner that `role` gets; it is ended."""
    link = spares.take(role)
    link.end()
    return link.number


def test_a_candidate_and_a_new_reference_find_theirs_started(lane):
    spares = Spares(lane, {RunnerRole.WIDE: 1, RunnerRole.NARROW: 2})
    spares.fill()
    spares.fill()
    assert lane.roles == {1: RunnerRole.WIDE, 2: RunnerRole.NARROW, 3: RunnerRole.NARROW}
    assert taken(spares, RunnerRole.NARROW) == 2
    assert taken(spares, RunnerRole.REFERENCE) == 1
    assert lane.roles[1] is RunnerRole.REFERENCE
    assert taken(spares, RunnerRole.NARROW) == 3
    assert taken(spares, RunnerRole.NARROW) == 4, "none waits: a new one"
    spares.fill()
    spares.fill()
    started = [lane.roles[number] for number in (5, 6, 7)]
    assert started == [RunnerRole.WIDE, RunnerRole.NARROW, RunnerRole.NARROW]
    spares.end()


@pytest.mark.parametrize(
    ("waits", "role"),
    [
        (RunnerRole.NARROW, RunnerRole.REFERENCE),
        (RunnerRole.NARROW, RunnerRole.WIDE),
        (RunnerRole.WIDE, RunnerRole.NARROW),
    ],
)
def test_nobody_gets_one_that_has_more_connections_or_fewer(lane, waits, role):
    spares = Spares(lane, {waits: 2})
    spares.fill()
    assert taken(spares, role) == 3
    assert lane.roles == {1: waits, 2: waits, 3: role}
    spares.end()


def test_where_nobody_can_tell_streams_all_that_wait_have_all_connections(lane):
    spares = Spares(lane, {RunnerRole.NARROW: 1, RunnerRole.WIDE: 1})
    spares.fill()
    spares.fill(all_wide=True)
    assert lane.killed == [1], "the one that nobody gets any more"
    assert taken(spares, RunnerRole.WIDE) == 2
    assert taken(spares, RunnerRole.REFERENCE) == 3
    spares.fill()
    assert taken(spares, RunnerRole.NARROW) in (4, 5)
    spares.end()


def test_few_are_started_at_a_time(lane):
    spares = Spares(lane, SPARES["cuda"])
    for count in (AT_ONCE, 4, 4):
        spares.fill()
        assert len(lane.roles) == count
    assert lane.roles[1] is RunnerRole.WIDE, "a new task's reference is waited for longest"
    spares.end()


def test_no_more_wait_than_were_asked_for(lane):
    spares = Spares(lane, {RunnerRole.NARROW: 2})
    spares.fill()
    spares.fill()
    assert len(lane.roles) == 2
    spares.end()
    assert sorted(lane.killed) == [1, 2]
    none = Spares(lane, {})
    none.fill()
    assert taken(none, RunnerRole.NARROW) == 3


def test_one_that_died_waiting_is_cleared_away(lane):
    spares = Spares(lane, {RunnerRole.NARROW: 2})
    spares.fill()
    lane.ended.add(1)
    assert taken(spares, RunnerRole.NARROW) == 2
    assert lane.killed == [1, 2]


def test_where_memory_is_short_none_waits_and_the_log_says_so_once(lane):
    free = [ROOM_BYTES - 1]
    spares = Spares(lane, {RunnerRole.NARROW: 2}, lambda: free[0])
    spares.fill()
    spares.fill()
    assert not lane.roles
    assert lane.notes == ["8.0 GiB of the GPU are free: below 8 no runner starts ahead"]
    free[0] = ROOM_BYTES
    spares.fill()
    assert lane.roles == {1: RunnerRole.NARROW, 2: RunnerRole.NARROW}
    assert lane.notes[1:] == ["runners start ahead again"]
    spares.end()


class Runner(Ward):
    """A runner's ward without a process."""

    def __init__(self) -> None:
        self.slain = False
        self.has_ended = False

    def slay(self) -> None:
        self.slain = True


def test_a_spare_that_became_the_reference_outlives_an_eviction():
    made: list[Runner] = []

    def start(number: int, address: Path, role: RunnerRole) -> Ward:
        made.append(Runner())
        return made[-1]

    wards = Wards(start)
    for _ in range(2):
        wards.answer({"ask": "spawn", "role": RunnerRole.NARROW, "socket": "s"})
    wards.answer({"ask": "appoint", "runner": 2, "role": RunnerRole.REFERENCE})
    wards.slay_candidates()
    assert [runner.slain for runner in made] == [True, False]
