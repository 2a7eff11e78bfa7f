"""Where waiting requests lie: in new/ itself, or dealt by their digest to some folders in it.

One folder is a lock on a file server, and a listing is as long as what lies in it. Knows nothing of
the disk.
"""

from __future__ import annotations

from pathlib import Path

from pike_hpc.mailbox.layout import Ticket

MAX_SHARDS = 64
"""An idle worker lists them all."""


class Shards:
    """The folders of the waiting requests of one mailbox."""

    def __init__(self, new: Path, count: int) -> None:
        self.folders = (new,) if count == 1 else tuple(new / f"{i:02x}" for i in range(count))

    def place(self, ticket: Ticket) -> Path:
        """Where a request lies while it waits, whoever puts it there, and however often."""
        number = int(ticket.request_id[:8], 16) % len(self.folders)
        return self.folders[number] / ticket.name
