"""Why a model gave no answer: it never will as asked, or it may later."""

from __future__ import annotations

from pike_hpc.llm.request import Completion
from pike_hpc.records import TryAgainLater, UsageError


class ModelRefused(UsageError):
    """The provider refuses the request as it is: key, model name, parameters. Never retried."""


class ModelUnavailable(TryAgainLater):
    """Overloaded, unreachable or answering nonsense, after all tries. Nothing is lost."""


class NotRecorded(TryAgainLater):
    """An answer came, is paid, and could not be put on tape: `completion` is all there is of it."""

    def __init__(self, what: str, completion: Completion, *, where: str, fix: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.completion = completion
