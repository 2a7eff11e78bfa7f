"""What a worker needs of whatever judges: a lane with a GPU, or a simulation.

Knows nothing of mailboxes. The worker owns the judge: it calls `evaluate` from one thread only
and `close` from another, also while an evaluation runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pike_hpc.records import EvalRequest, EvalResult, EvalStatus

MAX_LOG_TAIL = 4000
"""Characters of a traceback that travel with a JUDGE_ERROR."""


class JudgeUnwell(Exception):
    """The judge has a verdict, but only that it could not decide, and why: it should rest."""

    def __init__(self, result: EvalResult) -> None:
        super().__init__(result.message)
        self.result = result


class Judge(Protocol):
    """Judges one request at a time."""

    @property
    def device_kind(self) -> str:
        """The only kind of device whose requests it takes."""
        ...

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The verdict. A failing candidate is a result; raising means that the judge failed.

        Raises:
            JudgeUnwell: what failed lies with the machine or the task; its result is the verdict.
        """
        ...

    def close(self) -> None:
        """Kill what runs and free the device; an `evaluate` under way ends or raises soon."""
        ...


def judge_error(request: EvalRequest, message: str, log_tail: str = "") -> EvalResult:
    """The result of a judge that could not decide; never counted against the candidate."""
    return EvalResult(
        key=request.key,
        status=EvalStatus.JUDGE_ERROR,
        message=" ".join(message.split())[:500],
        log_tail=log_tail[-MAX_LOG_TAIL:],
    )
