"""Runners started ahead: taken in order, given their role, never one that has died waiting."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_spares import ROOM_BYTES, Spares
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wards import Wards
from pike_hpc.evaluate.wire import Role

pytestmark = pytest.mark.torch


class Lane:
    """What a judge asks of its lane about runners."""

    def __init__(self, folder: Path) -> None:
        self.roles: dict[int, Role] = {}
        self.ended: set[int] = set()
        self.killed: list[int] = []
        self.notes: list[str] = []
        self._folder, self._places = folder, 0

    def place(self) -> Path:
        self._places += 1
        made = self._folder / str(self._places)
        made.mkdir()
        return made

    def spawn(self, role: Role, socket: Path) -> int:
        number = len(self.roles) + 1
        self.roles[number] = role
        return number

    def appoint(self, runner: int, role: Role) -> None:
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


def taken(spares: Spares, role: Role) -> int:
    """The number of the runner that `role` gets; it is ended."""
    link = spares.take(role)
    link.end()
    return link.number


def test_a_candidate_and_a_new_reference_find_theirs_started(lane):
    spares = Spares(lane, {Role.SPREAD: 2})
    spares.fill()
    assert lane.roles == {1: Role.SPREAD, 2: Role.SPREAD}
    assert taken(spares, Role.CANDIDATE) == 1
    assert taken(spares, Role.REFERENCE) == 2
    assert lane.roles == {1: Role.CANDIDATE, 2: Role.REFERENCE}
    assert taken(spares, Role.CANDIDATE) == 3, "none waits: a new one"


@pytest.mark.parametrize("role", [Role.REFERENCE, Role.SPREAD])
def test_who_may_have_several_streams_gets_none_that_has_one_connection(lane, role):
    spares = Spares(lane, {Role.SPARE: 2})
    spares.fill()
    assert lane.roles == {1: Role.SPARE, 2: Role.SPARE}
    assert taken(spares, role) == 3
    assert taken(spares, Role.CANDIDATE) == 1
    assert lane.roles == {1: Role.CANDIDATE, 2: Role.SPARE, 3: role}
    spares.end()


def test_each_takes_the_one_that_was_started_for_it_while_there_is_one(lane):
    spares = Spares(lane, {Role.SPREAD: 1, Role.SPARE: 1})
    spares.fill()
    assert lane.roles == {1: Role.SPREAD, 2: Role.SPARE}
    assert taken(spares, Role.CANDIDATE) == 2
    assert taken(spares, Role.CANDIDATE) == 1, "better than to wait for a new one"
    spares.fill()
    assert [lane.roles[number] for number in (3, 4)] == [Role.SPREAD, Role.SPARE]
    assert taken(spares, Role.REFERENCE) == 3
    spares.fill()
    assert lane.roles[5] is Role.SPREAD, "what was taken is made up for"
    spares.end()


def test_once_widened_they_serve_everybody(lane):
    spares = Spares(lane, {Role.SPARE: 1, Role.SPREAD: 1})
    spares.fill()
    spares.widen()
    assert sorted(lane.killed) == [1, 2]
    spares.fill()
    assert taken(spares, Role.REFERENCE) == 3
    assert taken(spares, Role.REFERENCE) == 4


def test_no_more_wait_than_were_asked_for(lane):
    spares = Spares(lane, {Role.SPARE: 2})
    spares.fill()
    spares.fill()
    assert len(lane.roles) == 2
    spares.end()
    assert sorted(lane.killed) == [1, 2]
    none = Spares(lane, {})
    none.fill()
    assert taken(none, "candidate") == 3


def test_one_that_died_waiting_is_cleared_away(lane):
    spares = Spares(lane, {Role.SPARE: 2})
    spares.fill()
    lane.ended.add(1)
    assert taken(spares, Role.CANDIDATE) == 2
    assert lane.killed == [1, 2]


def test_where_memory_is_short_none_waits_and_the_log_says_so_once(lane):
    free = [ROOM_BYTES - 1]
    spares = Spares(lane, {Role.SPARE: 2}, lambda: free[0])
    spares.fill()
    spares.fill()
    assert not lane.roles
    assert lane.notes == ["8.0 GiB of the GPU are free: below 8 no runner starts ahead"]
    free[0] = ROOM_BYTES
    spares.fill()
    assert lane.roles == {1: Role.SPARE, 2: Role.SPARE}
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

    def start(number: int, address: Path, role: Role) -> Ward:
        made.append(Runner())
        return made[-1]

    wards = Wards(start)
    for _ in range(2):
        wards.answer({"ask": "spawn", "role": Role.SPARE, "socket": "s"})
    wards.answer({"ask": "appoint", "runner": 2, "role": Role.REFERENCE})
    wards.slay_candidates()
    assert [runner.slain for runner in made] == [True, False]
