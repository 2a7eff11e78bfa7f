"""The errors a person sees: what happened, where, what is valid, what to do next.

A user's mistake is a `UsageError`, an outside thing that may answer later a `TryAgainLater`.
A failure of a candidate is never an exception: it is an `EvalResult`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PikeError(Exception):
    """One clear message for a person. `exit_code` is what the command line returns for it."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        valid: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.what, self.where, self.valid, self.fix = what, where, valid, fix
        lines = [what]
        lines += [f"  where: {where}"] if where else []
        lines += [f"  valid: {valid}"] if valid else []
        lines += [f"  next:  {fix}"] if fix else []
        super().__init__("\n".join(lines))


class UsageError(PikeError):
    """Wrong usage or configuration, or a TASK, FILE or device that does not exist."""

    exit_code = 2


class TryAgainLater(PikeError):
    """Something outside is locked or unreachable now; the state is saved (EX_TEMPFAIL)."""

    exit_code = 75


class CodecError(PikeError):
    """Bytes that are not the record they claim to be."""


def did_you_mean(word: str, valid: Iterable[str]) -> str | None:
    """What `fix` says where a valid word is near to a wrong one; None where none is."""
    near = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None
