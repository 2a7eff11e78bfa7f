"""One side of a pair: what its windows go on from where a call leaves something to the next."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_side import Side  # noqa: E402 - torch
from pike_hpc.evaluate.runner import Op  # noqa: E402 - torch

pytestmark = pytest.mark.torch


class Link(SimpleNamespace):
    """Notes what it is asked: which input, and whether it goes on."""

    def __init__(self) -> None:
        super().__init__(asked=[])

    def windows(self, op, inputs, answers, *, goes_on=False) -> float:
        self.asked.append((op, int(inputs[0]), goes_on))
        return float(inputs[0])

    def spaces(self, count):
        return torch.zeros(count, 16, dtype=torch.uint8)

    def watch(self) -> None:
        """It spins from now on."""

    def rest(self) -> None:
        """It sleeps again."""


def side_of(*, goes_on):
    side = Side(Link(), goes_on=goes_on)
    side.make_room(3, 1)
    return side


def windows_of(*numbers):
    return [(torch.tensor(n),) for n in numbers]


def test_a_call_that_leaves_something_is_timed_after_one_that_did():
    side = side_of(goes_on=True)
    side.before = windows_of(9)[0]
    assert side.run(windows_of(1, 2), warmth=windows_of(7)[0]) == [1.0, 2.0]
    assert side.run(windows_of(3), Op.NULL) == [3.0]
    assert side.run(windows_of(4)) == [4.0]
    call, null = Op.CALL, Op.NULL
    assert side.link.asked == [
        (call, 7, False),
        *[(call, 9, False), (call, 1, True)],
        *[(call, 1, False), (call, 2, True)],
        (null, 3, False),
        *[(call, 2, False), (call, 4, True)],
    ]


def test_others_begin_anew_in_each_window():
    side = side_of(goes_on=False)
    side.before = windows_of(9)[0]
    assert side.run(windows_of(1, 2)) == [1.0, 2.0]
    assert side.link.asked == [(Op.CALL, 1, False), (Op.CALL, 2, False)]
