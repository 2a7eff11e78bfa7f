"""The judge's process in an image, as the lane starts, hears and ends it. No torch on this side.

What `bailiff` is for a judge beside us. No engine's client hands descriptors on, so this judge
connects to a socket in its folder; and since a client, its monitor and the judge are a handful of
processes, a warden stops, continues and ends them as it does a runner's.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pike_hpc.evaluate.bailiff import how_it_ended
from pike_hpc.evaluate.ward import Ward
from pike_hpc.evaluate.wire import Channel, Gone

PACKAGE = Path(__file__).resolve().parents[1]
"""All that a judge in an image is shown of ours."""

ADDRESS = "lane"
"""Name of the socket in the judge's folder."""

START_JUDGE = f"""
import socket, sys
package_parent, folder = sys.argv[1:]
link = socket.socket(socket.AF_UNIX)
link.connect(folder + "/{ADDRESS}")
sys.path.insert(0, package_parent)
from pike_hpc.evaluate.judge_process import main
main(link.detach(), folder)
"""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""


class ContainedJudge:
    """A judge that an engine's client runs, and the channel to it."""

    def __init__(
        self, argv: Sequence[str], folder: Path, *, env: Mapping[str, str], cwd: Path
    ) -> None:
        """Start it; it connects when its container is up.

        Args:
            argv: of the client; what runs in the end is START_JUDGE with PACKAGE's parent and
                `folder`.
            folder: shown writable at the same path; deleted when it has ended.
            env: the client's whole environment.
            cwd: the lane's folder.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = folder / ADDRESS
        listener.bind(str(address))
        address.chmod(0o600)
        listener.listen(1)
        self.channel = Awaited(listener)
        self._hands = threading.Lock()
        """Held while the warden is asked: another lane's timing may freeze us at any moment."""
        self._ward = Ward(argv, env=env, cwd=cwd, remove=[folder], first_to_go=False)
        self._ending: tuple[int | None, str] | None = None

    def sources(self) -> list[Any]:
        """What to wait for: its word, and its end before it has said any."""
        watched = self._ending is None and not self._ward.has_ended
        return [self.channel, self._ward] if watched else [self.channel]

    def pump(self) -> None:
        """Take what the warden said. Raises Gone where it ended before it connected."""
        with self._hands:
            if self._ending is None and select.select([self._ward], [], [], 0)[0]:
                self._ward.pump()
        if self._ward.has_ended and not self.channel.connected:
            raise Gone

    def forget_words(self) -> None:
        """What it wrote so far belongs to earlier orders."""
        with self._hands:
            self._ward.mark()

    def last_words(self) -> str:
        """How it ended and the last line it wrote since `forget_words`; it is ended now."""
        status, tail = self._end(grace_s=1.0)
        return how_it_ended(status, tail)

    def freeze(self) -> None:
        """Stop it, and the client's own processes."""
        with self._hands:
            Ward.stop_all([self._ward])

    def thaw(self) -> None:
        """Let them go on."""
        with self._hands:
            Ward.thaw_all([self._ward])

    def end(self) -> None:
        """Hang up, then kill."""
        self.channel.close()
        self._end()

    def _end(self, grace_s: float = 0.0) -> tuple[int | None, str]:
        with self._hands:
            if self._ending is None:
                self._ending = self._ward.end(grace_s)
            return self._ending


class Awaited(Channel):
    """A channel whose other side has yet to connect: what is sent before that waits.

    Whoever connects must be of our uid.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener)
        self.connected = False
        self._unsent = b""

    def send_line(self, line: bytes) -> None:
        """As of Channel; before the other side is there it can't be gone."""
        if self.connected:
            super().send_line(line)
        else:
            self._unsent += line

    def receive(self) -> list[dict[str, Any]]:
        """As of Channel; the first thing to be had is the connection, which is no message."""
        if self.connected:
            return super().receive()
        link, _ = self._link.accept()
        if _uid_of(link) != os.getuid():
            link.close()
            return []
        self._link.close()
        self._link, self.connected = link, True
        super().send_line(self._unsent)
        return []


def _uid_of(link: socket.socket) -> int:
    """Of whoever connected, in our user namespace."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
