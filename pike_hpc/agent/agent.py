"""The loop over tasks: give each its turn, keep few evaluations in flight, stop in order.

Contract: returns when every task is finished, the wall budget or the time given is used, a
stop is asked for, or nothing can go on. A mailbox that does not answer is waited for, for a while.
What it leaves behind is always resumable. Clock and sleep are arguments; it knows no configuration
file and no process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pike_hpc.agent.controller import Controller
from pike_hpc.records import PikeError, TryAgainLater

_log = logging.getLogger(__name__)

_IDLE_S = (0.02, 0.5)
"""Shortest and longest pause between two looks at mailbox and models."""

_GRACE_S = 10.0
"""How long past the end verdicts and answers in flight are still waited for."""

_PATIENCE_S = 3600.0
"""How long a mailbox that does not answer is waited for. Nobody starts an agent's job again, and a
file server that is restarted takes up to half an hour."""

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
    """Do what is ready, wait for open model calls (at most until sitting_s), and return."""

    @property
    def lanes(self) -> int:
        """Evaluations that are judged at the same time: the others only wait their turn."""
        return max(self.in_flight // 2, 1)


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
    patience = _Patience(0.0 if options.once else _PATIENCE_S)
    pause_s = _IDLE_S[0]
    while True:
        for controller in controllers:
            if controller.error is not None and not controller.asking:
                _give_up(controller, controller.error, left)
        active = [c for c in controllers if not c.finished and c not in left]
        if not active:
            return _end(controllers, left)
        elapsed = clock() - start
        over = bool(options.sitting_s) and elapsed >= options.sitting_s
        if stopping() or over:
            # With `once` the time given is what calls get.
            grace_s = _IDLE_S[1] if over and options.once else _GRACE_S
            _hear_out(active, left, clock, sleep, grace_s)
            return _leave(active, "stopped; the same command continues", left)
        # All collect before any advances: else whoever hears first takes its own room again.
        busy = any([_collect(c, left) for c in controllers if c not in left])
        patience.judge(active, left, elapsed)
        wall = _wall(controllers, active, options, elapsed)
        if wall.closing:
            busy |= _end_searches(active, left)
        may_ask = _answer_fits(controllers, options, elapsed)
        busy |= _advance(active, options, wall, left, busy=busy, may_ask=may_ask)
        if options.once and not busy and not any(c.asking for c in active):
            return _leave(active, "one tick done", left)
        pause_s = _IDLE_S[0] if busy else min(pause_s * 1.5, _IDLE_S[1])
        if not busy:
            sleep(pause_s)


class _Patience:
    """Gives tasks up whose mailbox has not answered for too long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Controller, float] = {}

    def judge(
        self, active: Sequence[Controller], left: dict[Controller, PikeError], now_s: float
    ) -> None:
        """Look at what collecting came to."""
        for controller in active:
            trouble = controller.mailbox_trouble
            if trouble is None:
                self._since.pop(controller, None)
                continue
            if not self._since:  # one line for all tasks: they share the mailbox
                _log.warning("the mailbox is tried again until it answers: %s", trouble)
            waited_s = now_s - self._since.setdefault(controller, now_s)
            if waited_s >= self._limit_s and not controller.asking:  # what is asked is paid
                tried = f" (tried for {waited_s / 60:.0f} minutes)" if waited_s else ""
                error = TryAgainLater(
                    trouble.what + tried,
                    where=trouble.where,
                    fix=trouble.fix or "check the file system, then give the same command again",
                )
                _give_up(controller, error, left)
                self._limit_s = 0.0  # it is one mailbox: the others need not try so long again


def _collect(controller: Controller, left: dict[Controller, PikeError]) -> bool:
    try:
        return controller.collect()
    except PikeError as error:
        _give_up(controller, error, left)
        return True


def _give_up(controller: Controller, error: PikeError, left: dict[Controller, PikeError]) -> None:
    if controller not in left:
        left[controller] = error
        with contextlib.suppress(PikeError):  # a journal that has failed takes no note either
            controller.pause(str(error), error.exit_code)


def _hear_out(
    active: Sequence[Controller],
    left: dict[Controller, PikeError],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    grace_s: float,
) -> None:
    """Journal the answers that are nearly here: they are paid for, also where one task fails.

    What only waits to be asked again is not: were it left open, it would count as lost.
    """
    end = clock() + grace_s
    for controller in active:
        controller.stop_waiting()
    while any(c.asking for c in active if c not in left) and clock() < end:
        sleep(_IDLE_S[1])
        for controller in active:
            if controller not in left:
                _collect(controller, left)


def _advance(
    active: Sequence[Controller],
    options: AgentOptions,
    wall: _Wall,
    left: dict[Controller, PikeError],
    *,
    busy: bool,
    may_ask: bool,
) -> bool:
    """Give each task its turn at the room that there is. True if anything was done."""
    acted = False
    for controller in sorted((c for c in active if c not in left), key=_turn):
        if (busy or acted) and _turn(controller)[0] == _LAST:
            break  # a search that has just ended asks for its winner first
        try:
            if wall.over and controller.search_ended:
                acted |= _finish_at_wall(controller, wall.left_s)
            else:
                room = max(options.in_flight - sum(c.in_flight for c in active), 0)
                acted |= controller.advance(room if wall.fits else 0, may_ask=may_ask)
        except PikeError as error:
            _give_up(controller, error, left)
    return acted


def _answer_fits(
    controllers: Sequence[Controller], options: AgentOptions, elapsed_s: float
) -> bool:
    """Whether a question asked now is likely answered before this sitting is over.

    In its first half always: otherwise a slow model would never be asked. An answer that comes
    too late is lost, and paid.
    """
    if not options.sitting_s or elapsed_s <= options.sitting_s / 2:
        return True
    slowest_s = max((c.slowest_answer_s for c in controllers), default=0.0)
    return 0.0 < slowest_s <= options.sitting_s - elapsed_s


_LAST = 2


def _turn(controller: Controller) -> tuple[int, int]:
    """Who may ask first, so that a budget that ends leaves no task untried.

    Those whose winner was never asked for again, then the searches, fewest evaluations first,
    then what else is to be timed again, fewest such requests first.
    """
    if not controller.search_ended:
        return (1, len(controller.view.requested))
    return (_LAST if controller.retimes_asked else 0, controller.retimes_asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wall:
    """Where the wall budget stands."""

    left_s: float = math.inf
    closing: bool = False
    """Nothing new may be begun, so that the best can be timed again in what is left."""
    fits: bool = True
    """A verdict asked for now, behind all that is in flight, comes in time."""
    over: bool = False
    """No verdict comes in time any more, even if nothing is in flight."""


def _wall(
    controllers: Sequence[Controller],
    active: Sequence[Controller],
    options: AgentOptions,
    elapsed_s: float,
) -> _Wall:
    if not options.wall_s:
        return _Wall()
    left_s = options.wall_s - elapsed_s
    typical_s = _typical_s(controllers)
    waiting = 1 + sum(c.in_flight for c in active)
    beyond_s = left_s - math.ceil(waiting / options.lanes) * typical_s
    again_s = 0.0
    if beyond_s < _RETIME_SHARE * options.wall_s:
        again_s = sum(c.retimes_left for c in active) * typical_s / options.lanes
    return _Wall(
        left_s=left_s,
        closing=beyond_s < again_s,
        fits=beyond_s >= 0.0,
        over=left_s < typical_s or left_s <= 0.0,
    )


def _typical_s(controllers: Sequence[Controller]) -> float:
    lasted = [r.lane_s for c in controllers for r in c.view.verdicts.values()]
    return statistics.median(lasted) if lasted else 0.0


def _end_searches(active: Sequence[Controller], left: dict[Controller, PikeError]) -> bool:
    """End every search at once, before any task asks for its winner again: all are then equal."""
    searching = [c for c in active if c not in left and not c.search_ended]
    for controller in searching:
        try:
            controller.end_search("The wall budget is used (budget.wall_minutes).")
        except PikeError as error:
            _give_up(controller, error, left)
    return bool(searching)


def _finish_at_wall(controller: Controller, left_s: float) -> bool:
    """Finish a task whose search has ended, whatever of its best is still to be timed again."""
    if (controller.in_flight or controller.asking) and left_s > -_GRACE_S:
        return False
    controller.finish()
    return True


def _leave(active: Sequence[Controller], reason: str, left: dict[Controller, PikeError]) -> Outcome:
    for controller in active:
        if controller not in left:
            try:
                controller.pause(reason, 0)
            except PikeError as error:
                left[controller] = error
    outcome = _end((), left)
    return Outcome(finished=False, exit_code=outcome.exit_code, reason=outcome.reason or reason)


def _end(controllers: Sequence[Controller], left: dict[Controller, PikeError]) -> Outcome:
    finished = all(c.finished for c in controllers)
    if not left:
        return Outcome(finished=finished)
    worst = max(left.values(), key=lambda e: e.exit_code != 75)
    return Outcome(finished=False, exit_code=worst.exit_code, reason=str(worst))
