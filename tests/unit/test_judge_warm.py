"""Tasks are kept while there is room: for so many of them, and on the host for their answers."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from builders.tiny_task import TASK_SOURCE

from pike_hpc.evaluate.judge_link import RunnerFailed
from pike_hpc.evaluate.judge_room import PLENTY_BYTES, ROOM_BYTES
from pike_hpc.evaluate.judge_warm import FREE_ON_HOST, WARM_TASKS, Warm
from pike_hpc.evaluate.runner import Op
from pike_hpc.records import Task

pytestmark = pytest.mark.torch


class Host:
    """What a judge says to its lane when it takes up a task, and has its reference started."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.started = 0
        self.killed: list[int] = []
        self.on_kill: Callable[[], None] = lambda: None

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def place(self) -> Path:
        made = Path(str(self.started))
        made.mkdir()
        return made

    def spawn(self, role: str, socket: Path) -> int:
        self.started += 1
        return self.started

    def has_ended(self, runner: int) -> bool:
        return runner in self.killed

    def kill(self, runner: int, grace_s: float) -> None:
        self.killed.append(runner)
        self.on_kill()


def task(number: int) -> Task:
    return Task(suite="tests", id=str(number), name="tiny", source=TASK_SOURCE + f"# {number}\n")


class Kept:
    """A Warm on a machine with so much free memory."""

    def __init__(self, free) -> None:
        self.free, self.host = free, Host()
        self.warm = Warm(self.host, torch.device("cpu"), False, lambda: self.free)

    def made_anew(self, *numbers: int) -> list[int]:
        """Those of the tasks that had to be set up again."""
        made = []
        for number in numbers:
            before = len(self.host.phases)
            self.warm.bench(task(number))
            made += [number] * (len(self.host.phases) - before)
        return made


@pytest.mark.parametrize("free", [FREE_ON_HOST["cpu"], None], ids=["room", "nobody says"])
def test_with_room_the_last_few_are_kept(free):
    kept = Kept(free)
    most = WARM_TASKS["cpu"]
    assert kept.made_anew(*range(most), *range(most)) == list(range(most))
    assert kept.made_anew(most, most, most - 1, 0) == [most, 0], "the longest unused one went"


def test_where_memory_is_short_only_the_task_at_hand_is_kept():
    kept = Kept(FREE_ON_HOST["cpu"] - 1)
    assert kept.made_anew(0, 0, 1, 1, 0) == [0, 1, 0]


def test_when_room_is_back_tasks_are_kept_again():
    kept = Kept(0)
    assert kept.made_anew(0, 1) == [0, 1]
    kept.free = FREE_ON_HOST["cpu"]
    assert kept.made_anew(0, 1, 0) == [0]


@pytest.mark.parametrize(
    ("enough_after", "ended"),
    [(0, []), (1, [2]), (2, [2, 3]), (3, [2, 3])],
    ids=["room", "after one", "after two", "never: the task at hand goes on"],
)
def test_on_a_gpu_that_is_short_of_memory_other_tasks_rest(
    tmp_path, monkeypatch, enough_after, ended
):
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes at most
    host = Host()
    free = [ROOM_BYTES]

    def look() -> None:
        free[0] = ROOM_BYTES if len(host.killed) >= enough_after else ROOM_BYTES - 1

    warm = Warm(host, torch.device("cuda"), False, lambda: None, lambda: free[0])
    benches = [warm.bench(task(number)) for number in range(3)]
    for bench in benches:
        bench.start()
    host.on_kill = look
    look()
    assert warm.bench(task(0)) is benches[0]
    assert host.killed == ended
    warm.rest()
    assert [warm.bench(task(number)) for number in range(3)] == benches, "they are kept"


@pytest.fixture
def warm_with_two():
    """A Warm on a GPU, its two benches, and how much of the GPU is free."""
    free = [PLENTY_BYTES]
    warm = Warm(Host(), torch.device("cuda"), False, lambda: None, lambda: free[0])
    return warm, [warm.bench(task(number)) for number in range(2)], free


def test_tasks_keep_what_their_next_orders_take_until_a_gpu_has_less_than_plenty(warm_with_two):
    warm, benches, free = warm_with_two
    given = []
    for number, bench in enumerate(benches):
        bench.shed = functools.partial(given.append, number)
    warm.shed()
    assert given == []
    free[0] -= 1
    warm.shed()
    assert given == [0, 1], "the one that waits for its next order as well"


def test_on_a_gpu_that_is_short_memory_goes_back_before_a_task_must_rest(warm_with_two):
    warm, benches, free = warm_with_two
    rested = []

    def gives() -> None:
        free[0] = PLENTY_BYTES

    benches[1].shed = gives
    for bench in benches:
        bench.rest = functools.partial(rested.append, bench)
    free[0] = ROOM_BYTES - 1
    warm.bench(task(0))
    assert rested == []


def test_a_reference_that_cannot_give_memory_back_is_let_go(warm_with_two):
    warm, benches, free = warm_with_two

    def fails() -> None:
        raise RunnerFailed(1, "deadline", Op.SHED)

    benches[0].shed = fails
    free[0] -= 1
    warm.shed()
    made = [warm.bench(task(number)) for number in range(2)]
    assert made[0] is not benches[0]
    assert made[1] is benches[1]
