"""The reference timed before any candidate is there: as a stopwatch would, in as few calls."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_anchor import WINDOWS, time_alone  # noqa: E402 - torch
from pike_hpc.evaluate.judge_plan import NULL_WINDOWS, POOL_BYTES  # noqa: E402 - torch
from pike_hpc.evaluate.nvml_guard import (  # noqa: E402 - torch
    DRIFT_MS,
    SLACK,
    Anchor,
    Guard,
    History,
    unread,
)
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402 - torch
from pike_hpc.evaluate.runner import Op  # noqa: E402 - torch

pytestmark = pytest.mark.torch


class Reference(SimpleNamespace):
    """A runner's link: a call takes `ms` and the protocol 0.5 ms a window; the first is slower."""

    places = 4

    def __init__(self, ms: float, sizes: tuple[int, int] = (16, 16)) -> None:
        super().__init__(ms=ms, asked=[], sizes=sizes)

    def windows(self, op: Op, inputs, answers) -> float:
        cold = not self.asked
        self.asked.append((op, len(inputs)))
        works = self.ms * (3.0 if cold else 1.0) if op is Op.CALL else 0.0
        return works + 0.5 / len(inputs)

    def staged(self, packed):
        return packed

    def spaces(self, count):
        return torch.zeros(count, 16, dtype=torch.uint8)

    def watch(self) -> None:
        """It spins from now on."""

    def rest(self) -> None:
        """It sleeps again."""


def fresh(count):
    return [torch.zeros(16, dtype=torch.uint8) for _ in range(count)]


def unwatched():
    return Guard(unread, History())


def test_a_short_model_is_timed_warm_and_the_constant_for_either_kind_of_window():
    reference = Reference(2.0)
    found = time_alone(reference, fresh, unwatched())
    assert found.latency_ms == pytest.approx(2.0)
    assert found.nulls_ms == {1: 0.5, 4: 0.125}
    assert reference.asked.count((Op.CALL, 1)) == 2 + 2 * WINDOWS
    assert reference.asked.count((Op.NULL, 4)) == NULL_WINDOWS


def test_a_slow_model_is_called_three_times_in_all():
    reference = Reference(900.0)
    found = time_alone(reference, fresh, unwatched())
    assert found.latency_ms == pytest.approx(900.0)
    assert reference.asked.count((Op.CALL, 1)) == 3


def test_one_slow_first_call_makes_no_slow_model():
    """Else nothing would be known of windows that its short calls share later."""
    reference = Reference(20.0)
    found = time_alone(reference, fresh, unwatched())
    assert found.nulls_ms == {1: 0.5, 4: 0.125}
    assert reference.asked.count((Op.CALL, 1)) > WINDOWS


def test_no_more_large_inputs_are_held_at_once_than_a_timing_would():
    reference = Reference(2.0, sizes=(POOL_BYTES, 16))
    held = []

    def few(count):
        held.append(count)
        return fresh(count)

    time_alone(reference, few, unwatched())
    assert max(held) == reference.places


@pytest.mark.parametrize(
    ("ms", "known", "told_ms"),
    [
        (2.0, {1: 1.0, 4: 1.0}, 2.0),
        (2.0, {1: 0.1, 4: 1.0}, 2.0),  # in shared windows it is no larger than it was
        (2.0, {1: 0.1, 4: 0.01}, 2.0 + 0.125 - (SLACK * 0.01 + DRIFT_MS)),
        (2.0, {1: 0.1, 4: 0.1}, 2.0 + 0.125 - (SLACK * 0.1 + DRIFT_MS)),
        (0.2, {1: 0.1, 4: 0.01}, (0.2 + 0.5) / 2),  # half of the window is the least of any model
    ],
)
def test_of_a_constant_that_has_grown_no_more_is_taken_off_than_is_known(ms, known, told_ms):
    history = History(anchor=Anchor(latency_ms=ms, sm_mhz=None, nulls_ms=known))
    found = time_alone(Reference(ms), fresh, Guard(unread, history))
    assert found.latency_ms == pytest.approx(told_ms)
    assert found.latency_ms < ms + 0.5, "it took no longer than its window"
    assert found.nulls_ms == {1: 0.5, 4: 0.125}


def test_what_another_process_shared_does_not_count():
    sensors = Sensors(computing=(1,))
    guard = Guard(SimulatedNvml(sensors).gpu().sample, History())

    def joined(count):
        sensors.computing = (1, 2)
        return fresh(count)

    assert time_alone(Reference(2.0), joined, guard) is None
    assert time_alone(Reference(2.0), fresh, guard) is not None  # by now it belongs there
