"""A judge whose device ended gives its verdict and goes; what else it says beside a verdict.

The lane's side and the judge's are real, but for the process, which is a thread, and the device.
"""

import itertools
import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from builders.threaded_judge import OPENING, ThreadedJudge  # noqa: E402 - torch
from builders.tiny_task import TASK_SOURCE, asked  # noqa: E402 - torch

from pike_hpc.evaluate.built import NOTHING  # noqa: E402 - torch
from pike_hpc.evaluate.crew import Crew, JudgeLost, Spoiled  # noqa: E402 - torch
from pike_hpc.evaluate.gate import SHORTAGES, Gate  # noqa: E402 - torch
from pike_hpc.evaluate.judge import Judge  # noqa: E402 - torch
from pike_hpc.evaluate.judge_bench import (  # noqa: E402 - torch
    Crowded,
    NotAdmitted,
    Shortage,
    Unfit,
)
from pike_hpc.evaluate.judge_context import settle  # noqa: E402 - torch
from pike_hpc.evaluate.judge_host import Ending  # noqa: E402 - torch
from pike_hpc.evaluate.lane import TRIES_BESIDE, Lane  # noqa: E402 - torch
from pike_hpc.records import EvalStatus, Isolation, Task, encode  # noqa: E402 - torch

pytestmark = pytest.mark.torch

ASSERTED = "CUDA error: device-side assert triggered"
RAISES = Task(
    suite="tests",
    id="2",
    name="raises",
    source=TASK_SOURCE.replace(
        "return self.second", f"raise RuntimeError({ASSERTED!r})\n        #"
    ),
)
"""Such a forward takes the judge's context on a GPU with it."""


def ended(device):
    raise RuntimeError(ASSERTED)


def kills(device):
    raise SystemExit


class Runner:
    """A candidate's, which is asked nothing."""

    def end(self, grace_s=0.0):
        return Ending(status=None, tail="")


class NothingKept:
    """In the place of what a judge keeps warm: every task fails as told, and is let go of so."""

    def __init__(self, *errors, lets_go=True, sheds=True):
        self.spares = SimpleNamespace(take=lambda role: Runner())
        self.place = SimpleNamespace(value="host")
        self._errors, self._lets_go, self._sheds = iter(errors), lets_go, sheds
        self.rests = 0

    def bench(self, task):
        raise next(self._errors)

    def forget(self, task):
        if not self._lets_go:
            raise RuntimeError(ASSERTED)

    def rest(self):
        self.rests += 1

    def shed(self):
        if not self._sheds:
            raise RuntimeError(ASSERTED)

    def moves_to_host(self, failed):
        return False


class Cell:
    """Starts one judge after the other, as told."""

    device = "cpu"

    def __init__(self, folder, *makes):
        self.folder, self.judges, self._makes = folder / "lane", [], iter(makes)

    def start(self, number, address, role):
        raise AssertionError("no runner is needed")

    def start_judge(self, folder):
        self.judges.append(ThreadedJudge(folder, next(self._makes)))
        return self.judges[-1]


def on(settle, warm=None):
    """Makes judges on such a device, that keep that warm."""
    return lambda *given: Judge(*given, settle=settle, warm=warm)


@pytest.fixture
def crew_of(tmp_path):
    """crew_of(make, ...): a lane's crew with one such judge after the other, and its cell."""
    crews = []

    def make_crew(*makes):
        cell = Cell(tmp_path, *makes)
        crews.append(Crew(cell, Gate(), lambda: OPENING))
        return crews[-1], cell

    yield make_crew
    for crew in crews:
        crew.close()


def admit(crew):
    return crew.order({"order": "admit", "task": encode(RAISES), "small_only": False})


def evaluate(crew):
    message = {"request": encode(asked("x = 1")), "built": encode(NOTHING), "keep": False}
    return crew.order({"order": "evaluate", **message})


def test_a_judge_whose_device_ended_answers_and_the_next_order_gets_a_new_one(crew_of, caplog):
    crew, cell = crew_of(on(ended), on(settle))
    with caplog.at_level(logging.WARNING):
        answer = admit(crew)
    assert answer["admitted"] is False
    assert ASSERTED in answer["reason"], "the order's verdict is not lost with the judge"
    assert [judge.has_ended for judge in cell.judges] == [True]
    assert "can't go on" in caplog.text
    assert ASSERTED in admit(crew)["reason"]
    assert [judge.has_ended for judge in cell.judges] == [True, False]


def test_one_that_is_sound_stays_whatever_its_orders_came_to(crew_of):
    crew, cell = crew_of(on(settle))
    for _ in range(3):
        assert ASSERTED in admit(crew)["reason"]
    crew.order({"order": "release"})
    assert [judge.has_ended for judge in cell.judges] == [False]


@pytest.mark.parametrize("cannot", ["lets_go", "sheds"])
def test_what_can_not_be_let_go_of_costs_the_judge_and_not_the_verdict(crew_of, cannot):
    """The memory of a context that has ended."""
    kept = NothingKept(RuntimeError(ASSERTED), **{cannot: False})
    crew, cell = crew_of(on(settle, kept), on(settle))
    result = evaluate(crew)
    assert result["status"] == EvalStatus.JUDGE_ERROR
    assert ASSERTED in result["message"]
    assert cell.judges[0].has_ended
    admit(crew)
    assert len(cell.judges) == 2


def test_an_admission_gives_back_what_it_took_too(crew_of):
    kept = NothingKept(RuntimeError(ASSERTED), sheds=False)
    crew, cell = crew_of(on(settle, kept))
    assert ASSERTED in admit(crew)["reason"]
    assert cell.judges[0].has_ended, "it could not"


def test_one_that_dies_of_it_is_lost_and_replaced(crew_of):
    crew, cell = crew_of(on(kills), on(settle))
    with pytest.raises(JudgeLost, match="its last words"):
        admit(crew)
    assert ASSERTED in admit(crew)["reason"]
    assert [judge.has_ended for judge in cell.judges] == [True, False]


def test_the_lane_hears_that_a_task_is_refused_and_of_that_order_alone(crew_of):
    errors = NotAdmitted("the task is not admitted: two answers"), Unfit("it is too large")
    crew, _ = crew_of(on(settle, NothingKept(*errors)))
    for refused in (True, False):
        assert evaluate(crew)["status"] == EvalStatus.JUDGE_ERROR
        assert crew.refused is refused


class Neighbour:
    """Another lane of the GPU, which is idle."""

    def __init__(self):
        self.gave_way = 0

    def freeze(self):
        pass

    def thaw(self):
        return True

    def evict(self):
        pass

    def give_way(self):
        self.gave_way += 1


@pytest.fixture
def beside(crew_of):
    """Makes a lane whose tasks fail as told, by judges on such devices; its GPU has a neighbour."""

    def make(*errors, kept=None, devices=(settle,)):
        kept = kept or NothingKept(*errors)
        crew, _ = crew_of(*(on(device, kept) for device in devices))
        neighbour = Neighbour()
        crew._gate.join(neighbour)
        lane = object.__new__(Lane)
        lane._crew, lane._gate, lane._builder, lane._like = crew, crew._gate, None, None
        lane._once, lane._isolation = threading.Lock(), Isolation(level="L0", engine="none")
        return lane, neighbour

    return make


REQUEST = asked("class ModelNew:\n    pass\n")
NO_ROOM = [Shortage("no room")] * TRIES_BESIDE
JUDGED = Unfit("it is judged")


@pytest.mark.parametrize("error", [Shortage("no room"), Crowded("full")])
def test_what_is_short_for_a_moment_is_judged_beside_the_others(beside, error):
    lane, neighbour = beside(error, JUDGED)
    assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert not neighbour.gave_way


@pytest.mark.parametrize(
    ("error", "retime", "rests"),
    [(Shortage("no room"), 0, 1), (Crowded("full"), 0, 0), (Shortage("no room"), 1, 0)],
)
def test_room_is_found_out_anew_before_a_second_try(beside, error, retime, rests):
    kept = NothingKept(error, JUDGED)
    lane, _ = beside(kept=kept, devices=(settle, settle))
    assert lane.evaluate(replace(REQUEST, retime=retime)).message == str(JUDGED)
    assert kept.rests == rests


def test_what_is_short_again_is_judged_alone(beside, caplog):
    lane, neighbour = beside(*NO_ROOM, JUDGED)
    assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert neighbour.gave_way == 1
    assert caplog.messages == ["judged again, memory was short on a shared GPU: no room"] * 2


@pytest.mark.parametrize(("error", "settles"), [(Shortage("room"), True), (Crowded("full"), False)])
def test_a_task_has_a_home_where_it_wants_room_and_not_where_a_runner_could_not_start(
    beside, error, settles
):
    lane, neighbour = beside(*([error] * TRIES_BESIDE + [JUDGED]) * SHORTAGES, JUDGED)
    for _ in range(SHORTAGES):
        assert lane._gate.home(REQUEST.task.digest) is None
        assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert (lane._gate.home(REQUEST.task.digest) is lane._crew) is settles
    assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert neighbour.gave_way == SHORTAGES + settles, "at home it is alone from the start"


def test_a_task_that_fits_in_between_has_no_home(beside):
    lane, _ = beside(*(([*NO_ROOM, JUDGED] * (SHORTAGES - 1)) + [JUDGED]) * 2)
    for _ in range(2 * SHORTAGES):
        assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert lane._gate.home(REQUEST.task.digest) is None


def test_kernels_that_do_not_end_trouble_the_others_once(beside):
    lane, neighbour = beside(JUDGED, JUDGED)
    phases = []

    def evict(phase):
        phases.append(phase)
        if len(phases) == 1:
            lane._crew.evict()

    assert lane.evaluate(REQUEST, evict).message == str(JUDGED)
    assert neighbour.gave_way == 1
    assert phases == ["start", "start"]


def dies_after(orders):
    """A device that takes the judge with it then."""
    count = itertools.count(1)

    def settles(device):
        if next(count) == orders:
            raise SystemExit

    return settles


def test_a_judge_that_died_says_nothing_of_the_room(beside):
    """Each time two tries and one alone, with an order to give way before the last two."""
    before = SHORTAGES - 1
    errors = [*NO_ROOM, JUDGED] * before + [JUDGED] + [*NO_ROOM, JUDGED]
    lane, _ = beside(*errors, devices=(dies_after(5 * before + 1), settle))
    for _ in range(before):
        assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert "the judge died" in lane.evaluate(REQUEST).message
    assert lane.evaluate(REQUEST).message == str(JUDGED)
    assert lane._gate.home(REQUEST.task.digest) is lane._crew


def test_a_task_has_no_home_with_a_judge_that_died(beside):
    devices = (dies_after(5), dies_after(5), dies_after(5))
    lane, _ = beside(*[*NO_ROOM, JUDGED] * SHORTAGES, devices=devices)
    for _ in range(SHORTAGES):
        assert "the judge died" in lane.evaluate(REQUEST).message
    assert lane._gate.home(REQUEST.task.digest) is None


def test_a_lane_that_is_alone_tries_once_and_says_nothing_of_others(beside, caplog):
    lane, neighbour = beside(*NO_ROOM)
    lane._gate.leave(neighbour)
    assert lane.evaluate(REQUEST).message == "no room"
    assert caplog.messages == []


def test_every_attempt_is_charged(beside):
    lane, _ = beside(*NO_ROOM, JUDGED)
    lane._gate._clock = itertools.count().__next__
    assert lane.evaluate(REQUEST).lane_s == len([*NO_ROOM, JUDGED])


@pytest.mark.parametrize("order", [{"order": "release"}, {"order": "admit", "small_only": False}])
def test_what_befell_one_order_is_not_said_of_the_next(beside, order):
    lane, _ = beside(*NO_ROOM, JUDGED, *NO_ROOM)
    crew = lane._crew
    lane._attempt(crew, REQUEST, NOTHING, None)
    assert crew.spoiled is Spoiled.SHORT
    crew.order({**order, "task": encode(REQUEST.task)})
    assert crew.spoiled is None
