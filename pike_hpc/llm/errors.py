"""Why a model gave no answer: it never will as asked, or it may later."""

from __future__ import annotations

from pike_hpc.records import TryAgainLater, UsageError


class ModelRefused(UsageError):
    """The provider refuses the request as it is: key, model name, parameters. Never retried."""


class ModelUnavailable(TryAgainLater):
    """Overloaded, unreachable or answering nonsense, after all tries. Nothing is lost."""
