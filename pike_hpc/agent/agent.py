"""The loop over tasks: give each its turn, keep few evaluations in flight, stop in order.

Contract: returns when every task is finished, the wall budget or the time given is used, a
stop is asked for, or nothing can go on. What it leaves behind is always resumable. Clock and
sleep are arguments; it knows no configuration file and no process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pike_hpc.agent.controller import Controller
from pike_hpc.records import PikeError

_IDLE_S = (0.02, 0.5)
"""Shortest and longest pause between two looks at mailbox and models."""

_GRACE_S = 10.0
"""How long past the end verdicts and answers in flight are still waited for."""

_RETIME_SHARE = 0.5
"""Most of the wall budget that a search leaves for timing its best again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What bounds one sitting of an agent."""

    in_flight: int = 2
    """Evaluations in the mailbox at once: enough that no worker idles, few enough that budgets
    cut cleanly."""
    wall_s: float = 0.0
    """Seconds left of the wall budget; 0 = no limit. At its end the tasks are finished; the
    searches end earlier, by what timing their best again is expected to take."""
    sitting_s: float = 0.0
    """Seconds after which this agent returns with the search unfinished; 0 = no limit."""
    once: bool = False
    """Do what is ready, wait for open model calls (up to sitting_s), and return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the sitting ended."""

    finished: bool
    exit_code: int = 0
    reason: str = ""


def run_agent(
    controllers: Sequence[Controller],
    options: AgentOptions,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    stopping: Callable[[], bool],
) -> Outcome:
    """Drive all tasks; a task whose provider fails is left, the others go on.

    Args:
        controllers: one a task, each holding its task's lock.
        options: bounds of this sitting.
        clock: monotonic seconds.
        sleep: waits that many seconds.
        stopping: True once somebody asked to stop.
    """
    start = clock()
    left: dict[Controller, PikeError] = {}
    pause_s = _IDLE_S[0]
    while True:
        for controller in controllers:
            if controller.error is not None and not controller.asking:
                _give_up(controller, controller.error, left)
        active = [c for c in controllers if not c.finished and c not in left]
        if not active:
            return _end(controllers, left)
        elapsed = clock() - start
        if stopping() or (options.sitting_s and elapsed >= options.sitting_s):
            _hear_out(active, clock, sleep)
            return _leave(active, "stopped; the same command continues", left)
        left_s = options.wall_s - elapsed if options.wall_s else math.inf
        beyond_s = left_s - _expected_s(controllers)
        closing = _is_closing(active, options, beyond_s)
        # All collect before any advances: else whoever hears first takes its own room again.
        busy = any([_collect(c, left) for c in active])
        for controller in _by_turn([c for c in active if c not in left]):
            try:
                room = max(options.in_flight - sum(c.in_flight for c in active), 0)
                if closing and not controller.search_ended:
                    busy |= _close_at_wall(controller, left_s)
                elif closing and beyond_s < 0.0:
                    busy |= _finish_at_wall(controller, left_s)
                else:
                    busy |= controller.advance(room)
            except PikeError as error:
                _give_up(controller, error, left)
        if options.once and not busy and not any(c.asking for c in active):
            return _leave(active, "one tick done", left)
        pause_s = _IDLE_S[0] if busy else min(pause_s * 1.5, _IDLE_S[1])
        if not busy:
            sleep(pause_s)


def _collect(controller: Controller, left: dict[Controller, PikeError]) -> bool:
    try:
        return controller.collect()
    except PikeError as error:
        _give_up(controller, error, left)
        return True


def _give_up(controller: Controller, error: PikeError, left: dict[Controller, PikeError]) -> None:
    if controller not in left:
        left[controller] = error
        controller.pause(str(error), error.exit_code)


def _hear_out(
    active: Sequence[Controller], clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Journal the answers that are nearly here: they are paid for."""
    end = clock() + _GRACE_S
    while any(c.asking for c in active) and clock() < end:
        for controller in active:
            controller.collect()
        sleep(_IDLE_S[1])


def _by_turn(active: Sequence[Controller]) -> list[Controller]:
    """Fewest evaluations first, so that a budget that ends leaves no task untried."""
    return sorted(active, key=lambda c: c.view.spent.evaluations)


def _expected_s(controllers: Sequence[Controller]) -> float:
    """How long the next verdict will take: nothing is begun that the wall budget would cut."""
    waiting = 1 + sum(c.in_flight for c in controllers)
    return waiting * _typical_s(controllers)


def _is_closing(active: Sequence[Controller], options: AgentOptions, left_s: float) -> bool:
    """Whether nothing new may be begun, so that the best can be timed again in what is left."""
    if left_s >= _RETIME_SHARE * options.wall_s:
        return left_s < 0.0
    retimes = sum(c.retimes_left for c in active)
    return left_s < retimes * _typical_s(active) / options.in_flight


def _typical_s(controllers: Sequence[Controller]) -> float:
    lasted = [r.lane_s for c in controllers for r in c.view.results.values()]
    return statistics.median(lasted) if lasted else 0.0


def _close_at_wall(controller: Controller, left_s: float) -> bool:
    if controller.in_flight and left_s > -_GRACE_S:
        return False
    controller.end_search("The wall budget is used (budget.wall_minutes).")
    return True


def _finish_at_wall(controller: Controller, left_s: float) -> bool:
    """Finish a task whose search has ended, whatever of its best is still to be timed again."""
    if controller.in_flight and left_s > -_GRACE_S:
        return False
    controller.finish()
    return True


def _leave(active: Sequence[Controller], reason: str, left: dict[Controller, PikeError]) -> Outcome:
    for controller in active:
        if controller not in left:
            controller.pause(reason, 0)
    outcome = _end((), left)
    return Outcome(finished=False, exit_code=outcome.exit_code, reason=outcome.reason or reason)


def _end(controllers: Sequence[Controller], left: dict[Controller, PikeError]) -> Outcome:
    finished = all(c.finished for c in controllers)
    if not left:
        return Outcome(finished=finished)
    worst = max(left.values(), key=lambda e: e.exit_code != 75)
    return Outcome(finished=False, exit_code=worst.exit_code, reason=str(worst))
