"""Tasks are kept while there is room: for so many of them, and on the host for their answers."""

import pytest

pytest.importorskip("torch")

import torch
from builders.tiny_task import TASK_SOURCE

from pike_hpc.evaluate.judge_warm import FREE_ON_HOST, WARM_TASKS, Warm
from pike_hpc.records import Task

pytestmark = pytest.mark.torch


class Host:
    """What a judge says to its lane when it takes up a task."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)


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
