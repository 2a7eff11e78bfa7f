"""JSON lines over a socket between processes that trust each other: lane, judge and wardens.

Never used with a runner: nothing an untrusted program wrote is parsed here, except the bounded
text of its log, which travels as a JSON string made by a warden.
"""

from __future__ import annotations

import enum
import json
import socket
from typing import Any

LEFT = "left"
"""The file in a judge's folder that an order left for its lane."""


class RunnerRole(enum.StrEnum):
    """What a runner is started for, and so how many connections to a GPU it has."""

    REFERENCE = "reference"
    """Runs nothing hostile. Has all of them."""
    NARROW = "narrow"
    """A candidate with one, or what waits for such: its work is on one stream, as far as known."""
    WIDE = "wide"
    """A candidate with all, or what waits for such or for a reference."""

    @property
    def one_connection(self) -> bool:
        """Whether it has one."""
        return self is RunnerRole.NARROW


class Gone(Exception):
    """The other side hung up."""


class Channel:
    """One end of a stream socket."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._rest = b""

    def fileno(self) -> int:
        """For poll."""
        return self._link.fileno()

    def send(self, **message: Any) -> None:
        """One message. Raises Gone."""
        self.send_line(json.dumps(message).encode("ascii") + b"\n")

    def send_line(self, line: bytes) -> None:
        """Bytes that end a line, as they are. Raises Gone."""
        try:
            self._link.sendall(line)
        except OSError:
            raise Gone from None

    def receive(self) -> list[dict[str, Any]]:
        """What can be read now, waiting for the first bytes; maybe no whole message.

        Raises:
            Gone: the other side closed, or died.
        """
        try:
            part = self._link.recv(1 << 18)
        except ConnectionError:
            part = b""
        if not part:
            raise Gone
        *lines, self._rest = (self._rest + part).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Hang up."""
        self._link.close()
