"""Any order in which lanes enter, time, leave and close: one times alone, the others are frozen.

The gate is the product's, with a thread a lane as in a worker. A model in this file says who must
have been let in; who must not is checked after every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pike_hpc.evaluate.gate import SHORTAGES, Departed, Gate, Stay

LANES = 3
PATIENCE_S = 20


class Crew:
    """Notes what the gate does to it."""

    def __init__(self) -> None:
        self.frozen = False
        self.evicted = self.gave_way = 0
        self.holds_still = True

    def freeze(self) -> None:
        assert not self.frozen
        self.frozen = True

    def thaw(self) -> bool:
        was, self.frozen = self.frozen, False
        return self.holds_still or not was

    def evict(self) -> None:
        assert self.frozen
        self.evicted += 1

    def give_way(self) -> None:
        assert not self.frozen
        self.gave_way += 1


class Lane:
    """One lane's thread, and what the model knows of it."""

    def __init__(self) -> None:
        self.crew = Crew()
        self.thread = ThreadPoolExecutor(1)
        self.state = "out"
        self.stay: Any = None
        self.charged = [0.0, 0.0]
        self.pending: Future[Any] | None = None

    def ask(self, call: Callable[[], Any]) -> None:
        self.pending = self.thread.submit(call)


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate: Gate[Crew] = Gate(clock=lambda: self.now)
        self.lanes = [Lane() for _ in range(LANES)]
        for lane in self.lanes:
            self.gate.join(lane.crew)
        self.entering: list[Lane] = []
        self.holding: list[Lane] = []
        self.whole: Lane | None = None
        self.holder: Lane | None = None

    def inside(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.state in ("in", "asks", "alone")]

    def pick(self, data: st.DataObject, *states: str) -> Lane:
        return data.draw(st.sampled_from([x for x in self.lanes if x.state in states]))

    def let_in(self) -> None:
        """Grant in the model what must be granted, and await it of the gate."""
        granted = []
        while self.entering and self.whole is None:
            first = self.entering[0]
            if first.state == "enters whole":
                if self.inside():
                    break
                self.whole = first
            first.state = "in"
            granted.append(self.entering.pop(0))
        if self.holding and self.holder is None:
            self.holder = self.holding.pop(0)
            self.holder.state = "alone"
            granted.append(self.holder)
        for lane in granted:
            assert lane.pending is not None
            found = lane.pending.result(PATIENCE_S)
            lane.stay, lane.pending = (found or lane.stay), None

    def exit(self, lane: Lane) -> None:
        context, stay = lane.stay
        lane.thread.submit(context.__exit__, None, None, None).result(PATIENCE_S)
        assert (stay.gpu_s, stay.alone_s) == pytest.approx(lane.charged)
        lane.charged = [0.0, 0.0]
        if self.holder is lane:
            self.holder = None
        if self.whole is lane:
            self.whole = None
        lane.state = "out"

    @precondition(lambda self: any(x.state == "out" for x in self.lanes))
    @rule(data=st.data(), whole=st.booleans())
    def asks_to_enter(self, data, whole):
        lane = self.pick(data, "out")
        others = [x.crew for x in self.lanes if x is not lane and x.state != "gone"]
        before = sum(crew.gave_way for crew in others)
        context = (self.gate.whole if whole else self.gate.among)(lane.crew)

        def enter() -> tuple[Any, Stay]:
            return context, context.__enter__()

        lane.ask(enter)
        lane.state = "enters whole" if whole else "enters"
        self.entering.append(lane)
        self.await_line(len(self.entering), "_entering")
        self.let_in()
        if whole and lane.state == "in":
            assert sum(crew.gave_way for crew in others) == before + len(others)

    @precondition(lambda self: any(x.state == "in" for x in self.lanes))
    @rule(data=st.data())
    def asks_to_be_alone(self, data):
        lane = self.pick(data, "in")
        lane.ask(lambda: self.gate.hold(lane.crew))
        lane.state = "asks"
        self.holding.append(lane)
        self.await_line(len(self.holding), "_holding")
        self.let_in()

    @precondition(lambda self: self.holder is not None)
    @rule(data=st.data())
    def gives_back(self, data):
        lane = self.holder
        assert lane is not None
        others = [x for x in self.lanes if x is not lane and x.state != "gone"]
        for other in others:
            other.crew.holds_still = data.draw(st.booleans())
        held = lane.thread.submit(self.gate.give_back, lane.crew).result(PATIENCE_S)
        assert held == all(other.crew.holds_still for other in others)
        self.holder, lane.state = None, "in"
        self.let_in()

    @precondition(lambda self: any(x.state in ("in", "alone") for x in self.lanes))
    @rule(data=st.data())
    def ends_even_while_alone(self, data):
        self.exit(self.pick(data, "in", "alone"))
        self.let_in()

    @precondition(lambda self: any(x.state in ("in", "alone") for x in self.lanes))
    @rule(data=st.data())
    def evicts(self, data):
        lane = self.pick(data, "in", "alone")
        before = [x.crew.evicted for x in self.lanes]
        self.gate.evict(lane.crew)
        after = [x.crew.evicted for x in self.lanes]
        for other, was, now in zip(self.lanes, before, after, strict=True):
            expected = lane is self.holder and other is not lane and other.state != "gone"
            assert now - was == int(expected)

    @precondition(lambda self: sum(x.state != "gone" for x in self.lanes) > 1)
    @rule(data=st.data())
    def closes_whatever_it_does(self, data):
        lane = self.pick(data, "out", "in", "alone", "enters", "enters whole", "asks")
        self.gate.leave(lane.crew)
        for line in (self.entering, self.holding):
            if lane in line:
                line.remove(lane)
                assert lane.pending is not None
                with pytest.raises(Departed):
                    lane.pending.result(PATIENCE_S)
        if self.holder is lane:
            self.holder = None
        if lane in self.inside():
            self.exit(lane)
        lane.state = "gone"
        self.let_in()

    @rule(passed_s=st.floats(0.1, 5.0))
    def time_passes(self, passed_s):
        self.now += passed_s
        if self.holder is not None:
            self.holder.charged[0] += passed_s
            self.holder.charged[1] += passed_s
            return
        for lane in self.inside():
            lane.charged[0] += passed_s / len(self.inside())

    def await_line(self, length: int, name: str) -> None:
        """Until the lane's thread stands in line, or has been let through."""
        while len(getattr(self.gate, name)) < length:
            if any(x.pending is not None and x.pending.done() for x in self.lanes):
                return

    @invariant()
    def nobody_else_was_let_in(self):
        for lane in (*self.entering, *self.holding):
            assert lane.pending is not None
            assert not lane.pending.done()

    @invariant()
    def all_but_the_holder_are_frozen(self):
        for lane in self.lanes:
            if lane.state != "gone":
                assert lane.crew.frozen == (self.holder is not None and lane is not self.holder)

    def teardown(self):
        for lane in self.lanes:
            self.gate.leave(lane.crew)
        for lane in self.lanes:
            lane.thread.shutdown()


GateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestGate = GateMachine.TestCase


def test_a_task_has_a_home_after_it_ran_short_again_and_again_and_one_alone():
    gate: Gate[Crew] = Gate()
    first, second = Crew(), Crew()
    gate.join(first)
    assert not gate.shared
    gate.join(second)
    assert gate.shared
    assert gate.home("t") is None
    for _ in range(SHORTAGES - 1):
        gate.settle("t", first)
    gate.fitted("t")
    for _ in range(SHORTAGES):
        assert gate.home("t") is None
        gate.settle("t", first)
    assert gate.home("t") is first
    gate.settle("t", second)
    assert gate.home("t") is first
    assert gate.home("another") is None
    gate.leave(first)
    assert gate.home("t") is None


def test_a_lane_that_cannot_be_frozen_does_not_leave_the_gate_shut():
    class Broken(Crew):
        def freeze(self) -> None:
            raise OSError("no such process")

    gate: Gate[Crew] = Gate()
    well, broken = Crew(), Broken()
    gate.join(well)
    gate.join(broken)
    with pytest.raises(OSError, match="no such"):
        gate.hold(well)
    gate.hold(broken)
    assert well.frozen
    gate.give_back(broken)
    assert not well.frozen


def test_lanes_are_stopped_and_let_go_at_the_same_time():
    both = threading.Barrier(2, timeout=PATIENCE_S)

    class Slow(Crew):
        def freeze(self) -> None:
            both.wait()
            super().freeze()

        def thaw(self) -> bool:
            both.wait()
            return super().thaw()

    gate: Gate[Crew] = Gate()
    holder = Crew()
    for crew in (holder, Slow(), Slow()):
        gate.join(crew)
    gate.hold(holder)
    assert gate.give_back(holder)


def test_a_lane_that_was_stopped_late_goes_on_where_another_cannot_be_stopped():
    failed = threading.Event()

    class Broken(Crew):
        def freeze(self) -> None:
            failed.set()
            raise OSError("no such process")

    class Late(Crew):
        def freeze(self) -> None:
            assert failed.wait(PATIENCE_S)
            super().freeze()

    gate: Gate[Crew] = Gate()
    holder, late = Crew(), Late()
    for crew in (holder, Broken(), late):
        gate.join(crew)
    with pytest.raises(OSError, match="no such"):
        gate.hold(holder)
    assert not late.frozen


def test_where_no_thread_is_to_be_had_lanes_are_stopped_one_by_one(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    gate: Gate[Crew] = Gate()
    holder, *others = crews = [Crew() for _ in range(3)]
    for crew in crews:
        gate.join(crew)
    gate.hold(holder)
    assert all(crew.frozen for crew in others)
    assert gate.give_back(holder)
    gate.hold(others[0])
    assert holder.frozen
