"""A mailbox whose file system does not answer some of its agent's calls."""

from collections.abc import Callable

from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import TryAgainLater

OK, BEFORE, AFTER = "ok", "before", "after"
"""What becomes of a call: it is done; it fails; it fails and was done all the same, as on NFS."""


class FlakyMailbox(MemoryMailbox):
    """`fate` says what becomes of each call of an agent, by its name. Workers are always served."""

    def __init__(self, fate: Callable[[str], str], cause: OSError | None = None) -> None:
        super().__init__()
        self.fate, self.cause = fate, cause

    def _call(self, name, call):
        fate = self.fate(name)
        done = call() if fate != BEFORE else None
        if fate != OK:
            raise TryAgainLater("the mailbox does not answer", where="done") from self.cause
        return done

    def put_many(self, requests):
        return self._call("put", lambda: super(FlakyMailbox, self).put_many(requests))

    def results(self, request_ids):
        return self._call("results", lambda: super(FlakyMailbox, self).results(request_ids))

    def discard(self, request_ids):
        return self._call("discard", lambda: super(FlakyMailbox, self).discard(request_ids))

    def withdraw(self, request_ids):
        return self._call("withdraw", lambda: super(FlakyMailbox, self).withdraw(request_ids))
