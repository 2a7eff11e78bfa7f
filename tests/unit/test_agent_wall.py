"""The wall budget: time at work counts, time asleep doesn't, and nothing is begun in vain."""

from pike_hpc.agent import active_seconds
from pike_hpc.journal import Stamped
from pike_hpc.records import Finished


def at(epoch, *times):
    event = Finished(reason="")
    return [Stamped(time=t, epoch=epoch, seq=n, event=event) for n, t in enumerate(times)]


def test_a_night_between_two_sittings_uses_nothing():
    assert active_seconds([at(1, 100, 130, 160) + at(2, 90_000, 90_020)]) == 80


def test_tasks_at_work_side_by_side_use_the_time_once():
    assert active_seconds([at(1, 0, 50), at(1, 10, 30), []]) == 50
    assert active_seconds([]) == 0
