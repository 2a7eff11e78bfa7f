"""Runs the judge on one thread of its own, so that the worker can beat and obey meanwhile.

One thread for all evaluations: processes that the judge starts may be tied to the life of the
thread that started them. Knows nothing of mailboxes.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from pike_hpc.records import EvalRequest, EvalResult
from pike_hpc.worker.judge import Judge, JudgeUnwell, judge_error
from pike_hpc.worker.pace import Tally


class Judged(NamedTuple):
    """A verdict, and whether it stands for a failure of the judge."""

    result: EvalResult
    judge_failed: bool


class JudgeThread:
    """One judge, one evaluation at a time. `ring` is called whenever one has ended."""

    def __init__(self, judge: Judge, ring: Callable[[], None]) -> None:
        self.phase = ""
        self.tally = Tally(time.monotonic)
        self._closed = False
        self._judge = judge
        self._ring = ring
        self._requests: queue.SimpleQueue[EvalRequest | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Judged] = queue.SimpleQueue()
        # A daemon: a judge that ignores close() must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
        self._thread.start()

    def start(self, request: EvalRequest) -> None:
        """Begin an evaluation."""
        self._enter("starting")
        self._requests.put(request)

    def take(self) -> Judged | None:
        """The outcome once there is one."""
        try:
            return self._outcomes.get_nowait()
        except queue.Empty:
            return None

    def close(self, patience_s: float) -> None:
        """Close the judge, which ends an evaluation under way, and let the thread go."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)
            self._judge.close()
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            outcome = self._judged(request)
            self.tally.enter("idle")
            self._outcomes.put(outcome)
            self._ring()

    def _judged(self, request: EvalRequest) -> Judged:
        failed = False
        try:
            result = self._judge.evaluate(request, self._enter)
        except JudgeUnwell as error:
            result, failed = error.result, True
        except BaseException as error:  # SystemExit too: it would end this thread unseen
            message = f"the judge failed: {type(error).__name__}: {error}"
            return Judged(judge_error(request, message, traceback.format_exc()), True)
        if result.key != request.key:
            message = f"the judge answered for another request: {result.key}"
            return Judged(judge_error(request, message), True)
        return Judged(result, failed)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.tally.enter(phase)
