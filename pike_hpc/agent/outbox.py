"""What a task's journal has decided and the mailbox may not know yet: owed until it was taken.

The journal is written first, so a mailbox that fails in between must be told again: requests put,
verdicts forgotten, what nobody judges taken back. All of it may be repeated (`mailbox.protocol`).
A file system that does not answer for a while is no error here, but `trouble`. A full one is
raised: only a person or time makes room, and the journal needs it as well. So is that another
controller has the task: what it waits for must not be taken from under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pike_hpc.journal import Held
from pike_hpc.machine import FULL
from pike_hpc.mailbox import Mailbox
from pike_hpc.records import EvalRequest, EvalResult, TryAgainLater


class Outbox:
    """One controller's side of the mailbox. One thread calls it."""

    def __init__(self, mailbox: Mailbox, require_ours: Callable[[], None]) -> None:
        """`require_ours` raises Held where the task is another controller's by now."""
        self._mailbox, self._require_ours = mailbox, require_ours
        self._requests: dict[str, EvalRequest] = {}
        self._unwanted: frozenset[str] = frozenset()
        self._done: frozenset[str] = frozenset()
        self.taken_back: frozenset[str] = frozenset()
        """Requests whose verdict will not come: nobody had begun to judge them."""
        self.trouble: TryAgainLater | None = None
        """Why the last call came to nothing; None once one went well."""

    @property
    def owes(self) -> bool:
        """Whether the mailbox has not taken all that it was to be told."""
        return bool(self._requests or self._unwanted or self._done)

    def put(self, requests: Iterable[EvalRequest]) -> None:
        """These are to be judged. They are in the journal."""
        self._requests |= {request.request_id: request for request in requests}
        self._tell()

    def withdraw(self, request_ids: Collection[str]) -> None:
        """These are to be taken back, as far as nobody has begun to judge them."""
        self._unwanted |= frozenset(request_ids)
        self._tell()

    def discard(self, request_ids: Collection[str]) -> None:
        """These are to be forgotten: their verdicts are in the journal, or come too late."""
        self._done |= frozenset(request_ids)
        self._tell()

    def is_ours(self) -> bool:
        """Whether the task is still this controller's; False in trouble. Raises Held."""
        try:
            self._require_ours()
        except TryAgainLater as error:
            self._bear(error)
            return False
        return True

    def results(self, request_ids: Collection[str]) -> dict[str, EvalResult]:
        """Tell what is owed, then look: the verdicts that are there; none in trouble."""
        self._tell()
        if self.trouble is not None or not request_ids:
            return {}
        try:
            return self._mailbox.results(request_ids)
        except TryAgainLater as error:
            self._bear(error)
            return {}

    def _tell(self) -> None:
        self.trouble = None
        try:
            # What is not wanted any more may lie there in part: it is removed there, not put.
            for request_id in self._unwanted | self._done:
                self._requests.pop(request_id, None)
            if self._requests:
                self._mailbox.put_many(tuple(self._requests.values()))
                self._requests.clear()
            if self._unwanted or self._done:
                self._require_ours()
            if self._unwanted:
                self.taken_back |= self._unwanted - self._mailbox.withdraw(self._unwanted)
                self._unwanted = frozenset()
            if self._done:
                self._mailbox.discard(self._done)
                self._done = frozenset()
        except TryAgainLater as error:
            self._bear(error)

    def _bear(self, error: TryAgainLater) -> None:
        cause = error.__cause__
        full = isinstance(cause, OSError) and cause.errno in FULL
        if full or isinstance(error, Held):
            raise error
        self.trouble = error
