"""One GPU, several lanes: they work side by side, and each times alone. No torch.

Builds, loads and exams of all lanes share the GPU. A lane that times holds the gate: every other
lane is frozen at once and thawed afterwards, so nobody waits for anybody's work to end. A task
that does not fit beside others takes the whole GPU: it begins when what is under way has ended,
and one lane, its home, judges it from then on, or each lane would set it up anew. It has to run
short of memory several times in a row: the others may have had an unusual moment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)


SHORTAGES = 3
"""Programs of a task in a row that lack memory beside others until it has a home: while one has the
whole GPU all other lanes wait, for 40 s where it compiles."""


class Member(Protocol):
    """A lane, as the gate sees it. Called from other lanes' threads."""

    def freeze(self) -> None:
        """Stop every process at once."""

    def thaw(self) -> bool:
        """Let them go on; False where something ran all the same. Nothing if not frozen."""

    def evict(self) -> None:
        """Kill the candidates: their kernels did not end while they were frozen."""

    def give_way(self) -> None:
        """Free what GPU memory can be freed between evaluations."""


M = TypeVar("M", bound=Member)
T = TypeVar("T")


class Departed(Exception):
    """The lane was closed while it waited."""


@dataclass(slots=True)
class Stay:
    """What one evaluation has had of the GPU."""

    gpu_s: float = 0.0
    """Seconds charged: all of those alone, of those shared an equal part. Over all evaluations
    the sum is at most the time that passed."""
    alone_s: float = 0.0


class Gate(Generic[M]):
    """Thread-safe; waiting lines are served in order of arrival."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._members: list[M] = []
        self._inside: dict[M, Stay] = {}
        self._whole: M | None = None
        self._holder: M | None = None
        self._thawing = False
        self._entering: deque[object] = deque()
        self._holding: deque[object] = deque()
        self._homes: dict[str, M] = {}
        self._shortages: Counter[str] = Counter()
        self._charged_at = clock()

    @property
    def shared(self) -> bool:
        """Whether more than one lane is on the GPU."""
        return len(self._members) > 1

    def join(self, member: M) -> None:
        """One more lane. Waits while somebody times."""
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None)
            self._members.append(member)

    def leave(self, member: M) -> None:
        """The lane closes: what it held is free, and its waiting ends with Departed."""
        with self._changed:
            if member not in self._members:
                return
            self._members.remove(member)
            self._homes = {task: m for task, m in self._homes.items() if m is not member}
            self._changed.notify_all()
        self.give_back(member)

    @contextlib.contextmanager
    def among(self, member: M) -> Iterator[Stay]:
        """An evaluation beside others. Raises Departed."""
        with self._changed:
            self._await_turn(self._entering, member, lambda: self._whole is None)
            stay = self._enter(member)
        try:
            yield stay
        finally:
            self._exit(member)

    @contextlib.contextmanager
    def whole(self, member: M) -> Iterator[Stay]:
        """An evaluation with nobody beside it, begun when those under way have ended.

        Args:
            member: the lane that evaluates.

        Raises:
            Departed: the lane was closed meanwhile.
        """
        with self._changed:
            self._await_turn(
                self._entering, member, lambda: self._whole is None and not self._inside
            )
            self._whole = member
            stay = self._enter(member)
            others = self._others(member)
        try:
            for other in others:
                other.give_way()
            yield stay
        finally:
            self._exit(member)

    def hold(self, member: M) -> None:
        """Have the GPU alone: every other lane is frozen when this returns. Raises Departed."""
        with self._changed:
            self._await_turn(self._holding, member, lambda: self._holder is None)
            self._charge()
            self._holder = member
            others = self._others(member)
        try:
            for done in _of_each(others, lambda other: other.freeze()):
                done.result()
        except BaseException:
            self.give_back(member)
            raise

    def give_back(self, member: M) -> bool:
        """Let the others go on; False where one ran while it was frozen. Nothing if not held."""
        with self._changed:
            if self._holder is not member or self._thawing:
                return True
            self._thawing = True
            others = self._others(member)
        held = True
        for done in _of_each(others, lambda other: other.thaw()):
            try:
                held = done.result() and held
            except Exception:
                _log.exception("a frozen lane could not be thawed")
        with self._changed:
            self._charge()
            self._holder, self._thawing = None, False
            self._changed.notify_all()
        return held

    def evict(self, member: M) -> None:
        """Have the candidates of the lanes that are frozen for `member` killed."""
        with self._changed:
            others = self._others(member) if self._holder is member else []
        for other in others:
            other.evict()

    def home(self, task: str) -> M | None:
        """The lane that judges a task which needs the whole GPU; None for all other tasks."""
        with self._changed:
            return self._homes.get(task)

    def fitted(self, task: str) -> None:
        """One of its programs was judged beside others."""
        with self._changed:
            self._shortages.pop(task, None)

    def settle(self, task: str, member: M) -> None:
        """One of its programs lacked memory beside others, and was judged alone on `member`.

        That becomes the task's home after `SHORTAGES` in a row, unless it has one.
        """
        with self._changed:
            self._shortages[task] += 1
            if self._shortages[task] >= SHORTAGES:
                self._homes.setdefault(task, member)

    def _others(self, member: M) -> list[M]:
        return [other for other in self._members if other is not member]

    def _await_turn(self, line: deque[object], member: M, free: Callable[[], bool]) -> None:
        me = object()
        line.append(me)
        try:
            self._changed.wait_for(
                lambda: member not in self._members or (line[0] is me and free())
            )
            if member not in self._members:
                raise Departed
        finally:
            line.remove(me)
            self._changed.notify_all()

    def _enter(self, member: M) -> Stay:
        self._charge()
        self._inside[member] = Stay()
        return self._inside[member]

    def _exit(self, member: M) -> None:
        self.give_back(member)
        with self._changed:
            self._charge()
            self._inside.pop(member, None)
            if self._whole is member:
                self._whole = None
            self._changed.notify_all()

    def _charge(self) -> None:
        """Put the time since the last change to somebody's account."""
        now = self._clock()
        passed, self._charged_at = now - self._charged_at, now
        holder = self._inside.get(self._holder) if self._holder is not None else None
        if holder is not None:
            holder.gpu_s += passed
            holder.alone_s += passed
        elif self._holder is None:
            for stay in self._inside.values():
                stay.gpu_s += passed / len(self._inside)


def _of_each(members: Sequence[M], do: Callable[[M], T]) -> list[Future[T]]:
    """What each gave, all at the same time and all done: stopping a lane is waiting for wardens."""
    threads = ThreadPoolExecutor(max(1, len(members)))
    found: list[Future[T]] = []
    with threads:
        for member in members:
            try:
                found.append(threads.submit(do, member))
            except RuntimeError:  # no thread is to be had
                found.append(_now(do, member))
    return found


def _now(do: Callable[[M], T], member: M) -> Future[T]:
    """The same without a thread."""
    done: Future[T] = Future()
    try:
        done.set_result(do(member))
    except Exception as error:
        done.set_exception(error)
    return done
