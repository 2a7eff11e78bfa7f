"""The processes of one lane: a judge, and the runners that it asks for. Host side, no torch.

Carries out orders by having the judge do them and serving it meanwhile. Another lane of the same
GPU may freeze all of it at any moment, from its own thread; time spent frozen counts as nobody's.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.bailiff import JudgeProcess
from pike_hpc.evaluate.cell import Cell
from pike_hpc.evaluate.contained import ContainedJudge
from pike_hpc.evaluate.gate import Departed, Gate
from pike_hpc.evaluate.wards import Wards
from pike_hpc.evaluate.wire import LEFT, Gone
from pike_hpc.machine import remove_tree

_log = logging.getLogger(__name__)

Judge = JudgeProcess | ContainedJudge

JUDGE_PATIENCE_S = 600.0
"""How long the judge may be silent beyond a candidate's time: float64 answers of large models."""


_LISTEN_S = 1.0
"""Between two looks for news at most: another lane's thread may have taken it off the socket."""


class JudgeLost(Exception):
    """The judge died or fell silent; the message says how."""


class Spoiled(enum.Enum):
    """Why what an order gave does not count."""

    RAN = "ran while it was frozen for another's timing"
    EVICTED = "its kernels went on while it was frozen for another's timing"
    SHORT = "memory was short on a shared GPU"
    CROWDED = "memory was short on a shared GPU before it began"
    HUNGRY = "the candidate ran out of memory on a shared GPU"


MAY_PASS = frozenset({Spoiled.RAN, Spoiled.SHORT, Spoiled.CROWDED})
"""What has to do with a moment of the others: not kernels that do not end, nor a candidate that
takes whatever there is. Those would trouble the others once more."""


class Crew:
    """A judge and its runners. One order at a time; freezing from any thread."""

    def __init__(self, cell: Cell, gate: Gate[Crew], opening: Callable[[], dict[str, Any]]) -> None:
        """Nothing starts before the first order.

        Args:
            cell: starts runners, below the folder in it.
            gate: of all lanes on the device.
            opening: what a new judge is told first.
        """
        self._cell, self._gate, self._opening = cell, gate, opening
        self._judge: Judge | None = None
        self._judges = 0
        self._wards = Wards(cell.start)
        self._hands = threading.Condition(threading.RLock())
        """Held by whoever starts, stops or ends processes."""
        self._frozen_at: float | None = None
        self._thawed_s = 0.0
        self._closed = False
        self._met: set[str] = set()
        """Tasks that the living judge met in a search, and all candidates."""
        self.spoiled: Spoiled | None = None
        """What befell the last order."""
        self.refused = False
        """Whether it failed because its task is not admitted."""
        self.left: Path | None = None
        """A file that it left: what the candidate's compilers made. Gone with the next order."""
        self._place = cell.folder
        """Of the living judge."""
        gate.join(self)

    def order(
        self,
        message: dict[str, Any],
        patience_s: float = JUDGE_PATIENCE_S,
        on_phase: Callable[[str], None] | None = None,
    ) -> Any:
        """Have the judge do something and serve it meanwhile; what it answers.

        A judge that can't go on after its answer is dropped, and the next order gets a new one.

        Raises:
            JudgeLost: it died or was silent for `patience_s`.
        """
        self.spoiled, self.refused, self.left = None, False, None
        try:
            judge = self._judge or self._start_judge()
            judge.forget_words()
            with self._moving():
                self._tell_ends(judge)
            judge.channel.send(**message)
            answer = self._serve(judge, patience_s, on_phase, "done")
            if answer["short"]:
                short = Spoiled.CROWDED if answer["crowded"] else Spoiled.SHORT
                self._spoil(short)
            self.refused = answer["refused"]
            self.left = self._place / LEFT if answer["left"] else None
            if not answer["sound"]:
                _log.warning("the judge on %s can't go on after this task", self._cell.device)
                self._drop_judge()
            return answer["done"]
        except (JudgeLost, Gone, Departed) as error:
            said = self._judge.last_words() if self._judge else "the lane was closed"
            self._drop_judge()
            if isinstance(error, JudgeLost):
                raise
            raise JudgeLost(f"the judge died: {said}") from None
        except BaseException as error:
            self._drop_judge()  # an interrupted exchange can't be continued
            if self._closed and isinstance(error, (OSError, ValueError)):
                raise JudgeLost("the lane was closed") from None  # amid a read of its sockets
            raise
        finally:
            self._together()

    def meet(self, what: str) -> bool:
        """Note what the judge is about to know; whether it is new to it."""
        new = what not in self._met
        self._met.add(what)
        return new

    def meet_afresh(self, what: str, known: Set[str]) -> None:
        """Likewise, in a new judge where the living one has met any of `known`."""
        if self._met & known:
            self._drop_judge()  # its weights and reference are those of an earlier time
        self._met.add(what)

    def freeze(self) -> None:
        """Stop judge and runners at once. A runner that would not rest is killed."""
        with self._hands:
            if self._closed or self._frozen_at is not None:
                return
            self._frozen_at = time.monotonic()
            if self._judge is not None:
                self._judge.freeze()
            if not self._wards.freeze():
                self._spoil(Spoiled.RAN)

    def thaw(self) -> bool:
        """Let them go on; False where a runner ran all the same, and was killed for it."""
        with self._hands:
            if self._frozen_at is None:
                return True
            held = self._wards.thaw()
            if not held:
                self._spoil(Spoiled.RAN)
            if self._judge is not None:
                self._judge.thaw()
            self._thawed_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
            self._hands.notify_all()
            return held

    def evict(self) -> None:
        """Kill the candidates: what they are asked begins again later, alone."""
        with self._hands:
            self._wards.slay_candidates()
            self._spoil(Spoiled.EVICTED)

    def give_way(self) -> None:
        """Free the device's memory of what is kept between orders."""
        if self._judge is not None:
            with contextlib.suppress(JudgeLost):
                self.order({"order": "release"})

    def close(self) -> None:
        """End every process, from any thread. An order under way raises. Can be called again."""
        self._gate.leave(self)
        with self._hands:
            self._closed, self._frozen_at = True, None
            self._drop_judge()
            self._hands.notify_all()
        remove_tree(self._cell.folder)

    def _spoil(self, why: Spoiled) -> None:
        """The first cause counts."""
        self.spoiled = self.spoiled or why

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        """With processes in hand, not frozen. Raises Departed."""
        with self._hands:
            self._hands.wait_for(lambda: self._frozen_at is None)
            if self._closed:
                raise Departed
            yield

    def _frozen_s(self) -> float:
        """How long it has been frozen, over its life."""
        since = self._frozen_at
        return self._thawed_s + (time.monotonic() - since if since is not None else 0.0)

    def _start_judge(self) -> Judge:
        with self._moving():
            self._judges += 1
            self._cell.folder.mkdir(mode=0o711, exist_ok=True)
            self._place = self._cell.folder / f"j{self._judges}"
            self._place.mkdir(mode=0o711)
            self._place.chmod(0o711)
            self._judge = judge = self._cell.start_judge(self._place)
        judge.channel.send(order="open", **self._opening())
        self._serve(judge, JUDGE_PATIENCE_S, None, "ready")
        return judge

    def _drop_judge(self) -> None:
        self._met.clear()
        with self._hands:
            if self._judge is not None:
                self._judge.end()
                self._judge = None
            self._wards.end()

    def _serve(
        self,
        judge: Judge,
        patience_s: float,
        on_phase: Callable[[str], None] | None,
        until: str,
    ) -> dict[str, Any]:
        """Answer the judge until it sends `until`, that message. Raises JudgeLost, Gone."""
        heard, frozen_s = time.monotonic(), self._frozen_s()
        while True:
            left = patience_s - (time.monotonic() - heard) + (self._frozen_s() - frozen_s)
            if left <= 0:
                raise JudgeLost(f"the judge was silent for {patience_s:.0f} s")
            with self._hands:
                sources: list[Any] = [*judge.sources(), *self._wards.living()]
            ready = select.select(sources, [], [], min(left, _LISTEN_S))[0]
            with self._moving():
                judge.pump()
                self._tell_ends(judge)
            if judge.channel not in ready:
                continue
            heard, frozen_s = time.monotonic(), self._frozen_s()
            for message in judge.channel.receive():
                if until in message:
                    return message
                if "phase" in message:
                    if on_phase is not None:
                        on_phase(message["phase"])
                elif "note" in message:
                    _log.warning("the judge on %s: %s", self._cell.device, message["note"])
                else:
                    judge.channel.send(**self._answer(message))

    def _tell_ends(self, judge: Judge) -> None:
        """Tell the judge which runners have ended by themselves."""
        self._wards.pump()
        for number in self._wards.ended():
            judge.channel.send(ended=number)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What the judge asked for. Raises Departed."""
        if message["ask"] == "alone":
            self._gate.hold(self)
            with self._hands:
                self._wards.freeze(but=message["runners"])
            return {"alone": True}
        if message["ask"] == "together":
            return {"held": self._together()}
        if message["ask"] == "evict":
            self._gate.evict(self)
            return {"evicted": True}
        with self._moving():
            return self._wards.answer(message)

    def _together(self) -> bool:
        """Give the gate back; False where somebody else ran meanwhile."""
        with self._hands:
            if self._frozen_at is None:
                self._wards.thaw()  # those that were out of the way of our own timing
        return self._gate.give_back(self)
