"""Which lane gets which request, and what a worker of several lanes says and does."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task
from pike_hpc.worker import SimulatedJudge, Stop, WorkerOptions, run_worker
from pike_hpc.worker.seats import Price, Worth, assign, matched

TASKS = [Task(suite="s", id=str(i), name=f"T{i}", source=f"x = {i}") for i in range(4)]


def request(task: int, number: int = 0) -> EvalRequest:
    return EvalRequest(
        task=TASKS[task], candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


def priced(tasks, warm, left=None):
    """Prices of these tasks in seats that have some warm; `left`: those that leave some to others.

    One that is left says 0 where it keeps the task, as for a program that is compiled again.
    """

    def price(number, seat):
        kept, task = warm[seat], tasks[number]
        if left and left[number][seat]:
            return Price(Worth.LEFT, 0 if task in kept else 1 + len(kept))
        if task in kept:
            return Price(Worth.WARM, len(kept) - kept.index(task))
        return Price(Worth.COLD, len(kept))

    return [[price(number, seat) for seat in range(len(warm))] for number in range(len(tasks))]


@pytest.mark.parametrize(
    ("tasks", "warm", "places"),
    [
        (["a"], [[], ["a"]], (1,)),
        (["a"], [["b", "a"], ["a", "b"]], (0,)),
        (["a", "b"], [["b"], ["a"]], (1, 0)),
        (["a", "b"], [["b", "a"], ["a"]], (1, 0)),
        (["x", "a"], [["a"], []], (1, 0)),
        (["x"], [["a"], ["b"], []], (2,)),
        (["a", "a"], [["a"], ["b"]], (0, 1)),
        (["x", "y"], [["a"], [], ["b", "c"]], (1, 0)),
        ([], [["a"]], ()),
    ],
)
def test_a_request_goes_to_the_lane_that_knows_its_task(tasks, warm, places):
    assert assign(priced(tasks, warm)) == places


@pytest.mark.parametrize(
    ("tasks", "warm", "left", "places"),
    [
        (["a"], [["a"], []], [[True, False]], (1,)),
        (["a"], [["a"], ["a"]], [[True, False]], (1,)),
        (["a"], [["b", "c"], []], [[False, True]], (0,)),
        (["a"], [["a", "b"], ["c"]], [[True, True]], (0,)),
        (["x", "a"], [[], ["a"]], [[False, False], [False, True]], (1, 0)),
        (["a", "b"], [["a"], ["b"]], [[True, False], [False, False]], (1, 0)),
        (["a", "b"], [[], []], [[True, True], [False, True]], (1, 0)),
        (["a", "a"], [["a"], ["a"]], [[False, False], [False, True]], (1, 0)),
    ],
)
def test_what_one_lane_leaves_to_others_goes_there_if_it_can(tasks, warm, left, places):
    assert assign(priced(tasks, warm, left)) == places


@given(st.data())
def test_no_lane_gets_two(data):
    seats = data.draw(st.integers(1, 6))
    prices = st.builds(Price, st.sampled_from(Worth), st.integers(0, 3))
    rows = st.lists(prices, min_size=seats, max_size=seats)
    asked = data.draw(st.lists(rows, max_size=seats))
    places = assign(asked)
    assert len(set(places)) == len(asked)
    assert set(places) <= set(range(seats))


def test_as_many_as_can_be_are_placed_where_their_task_is_warm():
    """The first one would be cheapest in the only seat of the second."""
    assert assign(priced(["b", "c"], [["c", "b"], ["a", "x", "b"]])) == (1, 0)
    assert matched(priced(["b", "c", "b"], [["c", "b"], ["a", "x", "b"]]), {0, 1}) == {0: 1, 1: 0}
    assert matched(priced(["b", "c"], [["c", "b"], ["b"]]), {1}) == {0: 1}


@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.lists(st.sampled_from("abc"), unique=True), min_size=1, max_size=4),
)
def test_no_other_way_places_more_of_them_warm(tasks, warm):
    placed = matched(priced(tasks, warm), range(len(warm)))
    assert len(set(placed.values())) == len(placed)
    assert all(tasks[number] in warm[seat] for number, seat in placed.items())
    ways = itertools.permutations([*range(len(warm)), *[None] * len(tasks)], len(tasks))
    most = max(
        sum(s is not None and task in warm[s] for task, s in zip(tasks, way, strict=True))
        for way in itertools.islice(ways, 100_000)
    )
    assert len(placed) >= most


def options(**changes) -> WorkerOptions:
    base = {"worker_id": "w", "max_idle_s": 0.2, "heartbeat_s": 0.1, "expected_s": 0.0}
    return WorkerOptions(**(base | changes))


class MeetingJudge:
    """Waits in each evaluation until every lane is in one."""

    device_kind = "cpu"

    def __init__(self, barrier: threading.Barrier, phase: str) -> None:
        self._barrier, self._phase = barrier, phase
        self.tasks: list[str] = []

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        on_phase(self._phase)
        self.tasks.append(request.task.id)
        self._barrier.wait(30)
        return EvalResult(key=request.key, status=EvalStatus.TIMEOUT)

    def close(self) -> None:
        self._barrier.abort()


def test_lanes_judge_at_the_same_time_and_keep_their_tasks():
    mailbox, barrier = MemoryMailbox(), threading.Barrier(2)
    for number in range(5):
        for task in (0, 1) if number % 2 else (1, 0):
            mailbox.put(request(task, number))
    judges = [MeetingJudge(barrier, "timing"), MeetingJudge(barrier, "build")]
    assert run_worker(mailbox, judges, options(), stop=Stop()) == 0
    assert mailbox.counts().done == 10
    assert len(judges[0].tasks) == len(judges[1].tasks) == 5


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


class BeatenMailbox(MemoryMailbox):
    """Keeps every heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = []

    def beat(self, beat):
        self.beats.append(beat)
        super().beat(beat)


def test_the_heartbeat_says_what_the_lanes_are_at():
    mailbox, barrier = BeatenMailbox(), threading.Barrier(4)
    phases = ["timing", "build", "timing"]
    for number in range(3):
        mailbox.put(request(0, number))
    stop = Stop()
    judges = [MeetingJudge(barrier, phase) for phase in phases]
    judges.append(SimulatedJudge("cpu"))
    done = threading.Thread(
        target=run_worker, args=(mailbox, judges, options(max_idle_s=None)), kwargs={"stop": stop}
    )
    done.start()
    said = "3/4 lanes: build, 2 timing"
    try:
        until(lambda: said in [beat.phase for beat in mailbox.beats])
        stop.request("SIGTERM")
        until(lambda: mailbox.beats[-1].state == "draining")
        barrier.wait(30)
    finally:
        stop.request("SIGTERM")
        done.join(30)
    (beat, *_) = [beat for beat in mailbox.beats if beat.phase == said]
    assert beat.state == "judging"
    assert beat.request_id in {request(0, number).request_id for number in range(3)}
    assert mailbox.counts().done == 3
    assert len({beat.worker_id for beat in mailbox.beats}) == 1


class BrokenJudge:
    """Its GPU has fallen off the bus."""

    device_kind = "cpu"

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        raise OSError("no such device")

    def close(self) -> None:
        raise OSError("no such device")


def test_a_broken_lane_rests_while_the_others_work():
    mailbox = MemoryMailbox()
    ids = []
    for number in range(40):
        mailbox.put(request(0, number))
        ids.append(request(0, number).request_id)
    judges = [BrokenJudge(), SimulatedJudge("cpu", latency_s=0.002)]
    assert run_worker(mailbox, judges, options(), stop=Stop(), rng=random.Random(0)) == 0
    assert mailbox.counts().done == 40
    assert not [r for r in mailbox.results(ids).values() if r.status is EvalStatus.JUDGE_ERROR]


@pytest.mark.parametrize("kinds", [(), ("cpu", "nvidia-h200")])
def test_judges_are_of_one_kind(kinds):
    judges = [SimulatedJudge(kind) for kind in kinds]
    with pytest.raises(ValueError, match="one kind"):
        run_worker(MemoryMailbox(), judges, options(), stop=Stop())
