"""Claiming ahead: what is prepared, what is handed out, and how much one worker takes."""

import random
from dataclasses import replace

import pytest
from builders.results import passed
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.mailbox import Claim
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, OneOff, Task
from pike_hpc.worker.backlog import AHEAD, DEAR_S, PATIENCE, PLENTY, Backlog
from pike_hpc.worker.judge_thread import Judged
from pike_hpc.worker.seats import Seat, Worth


class Workshop:
    """Prepares what it is told to, and is done when the test says so."""

    def __init__(self):
        self.begun, self.done = [], set()

    def prepare(self, request):
        self.begun.append(request.candidate_source)

    def is_ready(self, request):
        return request.candidate_source in self.done


class Idle:
    """A judge whose verdicts nobody reads."""

    device_kind = "gpu"

    def evaluate(self, request, on_phase):
        return EvalResult(key=request.key, status=EvalStatus.TIMEOUT)

    def close(self):
        pass


def claim(source, task="t", **more):
    request = EvalRequest(
        task=Task(suite="s", id=task, name=task, source=f"# {task}"),
        candidate_source=source,
        device_kind="gpu",
        image_digest="i",
        timeout_s=1.0,
        **more,
    )
    return Claim(request=request, attempt=1, token=source)


@pytest.fixture
def seats():
    made = [Seat(Idle(), lambda: None, random.Random(0)) for _ in range(2)]
    yield made
    for seat in made:
        seat.close(1.0)


def sources(handed):
    return [claim.request.candidate_source for claim, _ in handed]


def test_what_is_ready_goes_first_and_the_rest_waits_for_its_build(seats):
    workshop = Workshop()
    backlog = Backlog(workshop, 2)
    backlog.add([claim("slow"), claim("quick"), claim("next")])
    assert workshop.begun == ["slow", "quick", "next"]
    assert backlog.hand_out(seats, []) == []
    workshop.done |= {"quick", "next"}
    assert sources(backlog.hand_out(seats[:1], seats[1:])) == ["quick"]
    workshop.done.add("slow")
    handed = backlog.hand_out(seats, [])
    assert sources(handed) == ["slow", "next"]
    assert len({id(seat) for _, seat in handed}) == 2
    assert len(backlog) == 0


def test_without_a_preparer_all_is_ready_and_nothing_is_claimed_ahead(seats):
    backlog = Backlog(None, 2)
    assert backlog.wanted(0, 1000) == 0
    assert backlog.wanted(2, 1000) == 2
    backlog.add([claim("a")])
    assert sources(backlog.hand_out(seats, [])) == ["a"]


def test_others_come_first_unless_plenty_waits():
    backlog = Backlog(Workshop(), 2)
    assert backlog.wanted(0, 2 * PLENTY - 1) == 0
    assert backlog.wanted(0, 2 * PLENTY) == 2 * AHEAD
    assert backlog.wanted(1, 2 * PLENTY) == 2 * AHEAD + 1


def test_a_free_seat_does_not_wait_for_a_build_while_there_is_room():
    backlog = Backlog(Workshop(), 2)
    backlog.add([claim("slow")])
    assert backlog.wanted(1, 0) == 1, "one more, which may be ready at once"


def warm(seat, *tasks):
    """As if it had judged them."""
    seat._warm.extend(claim("", task).request.task.digest for task in tasks)


def test_what_a_free_seat_has_warm_goes_first_and_what_a_busy_one_has_goes_last(seats):
    backlog = Backlog(None, 2)
    backlog.add([claim("busy", "b"), claim("new", "n"), claim("warm", "w")])
    free, busy = seats
    warm(free, "w")
    warm(busy, "b")
    order = [sources(backlog.hand_out([free], [busy])) for _ in range(3)]
    assert order == [["warm"], ["new"], ["busy"]]


def test_each_free_seat_gets_what_it_has_warm_itself(seats):
    backlog = Backlog(None, 2)
    for seat, task in zip(seats, "ab", strict=True):
        warm(seat, task)
    backlog.add([claim("a1", "a"), claim("a2", "a"), claim("new", "n"), claim("b1", "b")])
    assert sorted(where(backlog.hand_out(seats, []), seats)) == [("a1", 0), ("b1", 1)]
    backlog.add([claim("a3", "a"), claim("a4", "a")])
    assert where(backlog.hand_out(seats, []), seats) == [("a2", 0), ("new", 1)]
    assert where(backlog.hand_out(seats, []), seats) == [("a3", 0), ("a4", 1)], "none stays idle"


def test_an_overdue_claim_does_not_wait_for_a_seat_that_has_its_task_warm(seats):
    backlog = Backlog(None, 2)
    warm(seats[0], "a")
    warm(seats[1], "n")
    backlog.add([claim("first", "a"), claim("second", "a")])
    for _ in range(PATIENCE * 2):
        backlog.add([claim("new", "n")])
        backlog.hand_out(seats[1:], [])
    backlog.add([claim("new", "n")])
    assert sources(backlog.hand_out(seats, [])) == ["first", "second"]


def test_nothing_waits_for_ever_while_others_are_warm(seats):
    backlog = Backlog(None, 2)
    free, busy = seats
    warm(free, "w")
    backlog.add([claim("patient", "n")])
    for _ in range(2 * PATIENCE):
        backlog.add([claim("warm", "w")])
        assert sources(backlog.hand_out([free], [busy])) == ["warm"]
    backlog.add([claim("warm", "w")])
    assert sources(backlog.hand_out([free], [busy])) == ["patient"]


def judged(
    seat, source, task, first_call_s=0.1, status=EvalStatus.PASSED, judge_failed=False, **more
):
    """As if it had: the task is warm, and the program's first call took so long."""
    one = claim(source, task, **more)
    seat.start(one, 0.0)
    once = OneOff(first_call_s=first_call_s)
    said = replace(passed(one.request.key, 1.5), one_off=once)
    if status is not EvalStatus.PASSED:
        said = replace(said, status=status, timing=None, tier=None)
    seat.settle(Judged(said, judge_failed), 0.0)


def where(handed, seats):
    return [(claim.request.candidate_source, seats.index(seat)) for claim, seat in handed]


@pytest.mark.parametrize(
    ("seen", "place"),
    [
        ([(DEAR_S + 1, EvalStatus.PASSED)], 1),
        ([(DEAR_S - 1, EvalStatus.PASSED)], 0),
        ([(DEAR_S + 1, EvalStatus.WRONG_RESULT)], 0),
        ([(DEAR_S + 1, EvalStatus.PASSED), (0.0, EvalStatus.TIMEOUT)], 1),
    ],
    ids=["compiled", "at once", "nothing was kept", "and failed later"],
)
def test_what_one_seat_compiled_for_long_goes_to_another(seats, seen, place):
    for first_call_s, status in seen:
        judged(seats[0], "again", "t", first_call_s, status)
    backlog = Backlog(None, 2)
    backlog.add([claim("again", "t")])
    assert where(backlog.hand_out(seats, []), seats) == [("again", place)]


def test_a_seat_that_met_what_another_compiled_leaves_it_to_a_third(seats):
    judged(seats[0], "again", "t", DEAR_S + 1)
    judged(seats[1], "again", "t")
    third = Seat(Idle(), lambda: None, random.Random(0))
    backlog = Backlog(None, 3)
    backlog.add([claim("again", "t"), claim("other", "t")])
    order = [sources(backlog.hand_out(seats[1:], [seats[0], third])) for _ in range(2)]
    third.close(1.0)
    assert order == [["other"], ["again"]], "last, and not never"


def test_what_all_have_met_keeps_its_place(seats):
    for seat in seats:
        judged(seat, "again", "t", DEAR_S + 1)
    backlog = Backlog(None, 2)
    backlog.add([claim("again", "t"), claim("cold", "n")])
    assert sources(backlog.hand_out(seats[:1], seats[1:])) == ["again"]


def test_what_the_only_seat_would_leave_to_others_keeps_its_place(seats):
    judged(seats[0], "again", "t", DEAR_S + 1)
    backlog = Backlog(None, 1)
    backlog.add([claim("again", "t"), claim("cold", "n")])
    assert sources(backlog.hand_out(seats[:1], [])) == ["again"]


WINNER = {"source": "winner", "task": "t", "retime": 1}
COMPILED = {"source": "first", "task": "t"}


@pytest.mark.parametrize("asked", [WINNER, COMPILED])
def test_a_free_seat_has_at_once_what_the_busy_one_would_leave_to_it(seats, asked):
    free, busy = seats
    judged(busy, "first", "t", DEAR_S + 1)
    backlog = Backlog(None, 2)
    backlog.add([claim(**asked), claim("other", "n")])
    assert sources(backlog.hand_out([free], [busy])) == [asked["source"]]


@pytest.mark.parametrize("asked", [WINNER, COMPILED])
def test_what_a_free_seat_would_leave_to_a_busy_one_waits_for_that(seats, asked):
    free, busy = seats
    judged(free, "first", "t", DEAR_S + 1)
    backlog = Backlog(None, 2)
    backlog.add([claim(**asked), claim("other", "n")])
    assert sources(backlog.hand_out([free], [busy])) == ["other"]


@pytest.mark.parametrize("asked", [WINNER, COMPILED])
def test_who_must_be_elsewhere_chooses_before_those_who_may_be_anywhere(seats, asked):
    judged(seats[1], "first", "t", DEAR_S + 1)
    backlog = Backlog(None, 2)
    backlog.add([claim("anywhere", "t"), claim(**asked)])
    handed = where(backlog.hand_out(seats, []), seats)
    assert sorted(handed) == [("anywhere", 1), (asked["source"], 0)]


def test_a_judge_that_a_new_one_replaces_had_better_keep_few_tasks(seats):
    for task in ("t", "u", "v"):
        judged(seats[0], "first", task)
    judged(seats[1], "first", "t")
    backlog = Backlog(None, 2)
    backlog.add([claim(**WINNER)])
    assert where(backlog.hand_out(seats, []), seats) == [("winner", 1)]


def test_a_judge_that_replaced_another_knows_nothing_but_what_it_judged(seats):
    seat = seats[0]
    judged(seat, "other", "u")
    judged(seat, "first", "t", DEAR_S + 1)
    judged(seat, "winner", "t", retime=1)
    assert seat.price(claim("other", "u").request, dear=False).worth is Worth.COLD
    assert seat.price(claim("first", "t").request, dear=True).worth is Worth.WARM
    assert seat.price(claim("second", "t", retime=1).request, dear=False).worth is Worth.WARM
    assert seat.price(claim("winner", "t", retime=2).request, dear=False).worth is Worth.LEFT
    assert seat.first_calls, "what takes long to compile does so in any judge"


def test_a_judge_that_failed_may_have_died(seats):
    judged(seats[0], "first", "t", DEAR_S + 1)
    judged(seats[0], "second", "t", judge_failed=True)
    assert seats[0].price(claim("third", "t").request, dear=False).worth is Worth.COLD
    assert seats[0].price(claim("first", "t").request, dear=True).worth is Worth.COLD


def test_a_thousand_programs_are_remembered(seats):
    seat = seats[0]
    for number in range(1001):
        judged(seat, str(number), "t")
    assert len(seat.first_calls) == 1000
    assert claim("0", "t").request.candidate.id not in seat.first_calls
    assert claim("1000", "t").request.candidate.id in seat.first_calls


def test_what_is_given_up_is_all_that_waits():
    backlog = Backlog(Workshop(), 2)
    held = [claim("a"), claim("b")]
    backlog.add(held)
    assert backlog.give_up() == held
    assert len(backlog) == 0
    assert backlog.give_up() == []


@given(
    seats=st.integers(1, 8),
    held=st.lists(st.booleans(), max_size=20),
    free=st.integers(0, 8),
    waiting=st.integers(0, 100),
)
def test_one_worker_holds_little_ahead(seats, held, free, waiting):
    workshop = Workshop()
    backlog = Backlog(workshop, seats)
    for number, ready in enumerate(held[: AHEAD * seats]):
        backlog.add([claim(str(number))])
        workshop.done |= {str(number)} if ready else set()
    free = min(free, seats)
    wanted = backlog.wanted(free, waiting)
    assert wanted >= 0
    if wanted:
        assert len(backlog) + wanted <= free + AHEAD * seats
