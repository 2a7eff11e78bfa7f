"""The kernel's word that something came into a folder of this machine's own disk (inotify).

Spares an idle worker its looks. Of what another machine does on a shared file system inotify tells
nothing, and several things may keep it from being had; so it is a help that looks at long intervals
stand behind. Knows nothing of what comes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_CREATED, _MOVED_TO, _ONE_SHOT, _ONLY_FOLDERS = 0x100, 0x80, 0x80000000, 0x01000000
_HEAD = struct.Struct("iIII")


class Arrivals:
    """Rings once after each `arm`, when a name has come into one of the folders since.

    One event and the kernel's watch is gone until the next `arm`: a thousand requests put at once
    wake a busy worker once at most.
    """

    def __init__(self, folders: Sequence[Path], ring: Callable[[], None]) -> None:
        """`ring` is called from a thread of its own. Raises OSError where inotify can't be had."""
        self._folders, self._ring = [os.fsencode(folder) for folder in folders], ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._armed = self._arrived = False
        self._closing, self._closer = os.pipe()
        self._files = [self._closing, self._closer]
        try:
            self._fd = self._call("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
            self._files.append(self._fd)
            self._watch()
        except BaseException:
            self._close_files()
            raise
        # A daemon: who leaves by an exception need not have closed it.
        self._thread = threading.Thread(target=self._listen, name="arrivals", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """From here on something that comes rings. To be called before a look, not after."""
        if not self._armed:
            # What keeps a watch from being set now is met by looks, which go on.
            with suppress(OSError):
                self._watch()

    def _watch(self) -> None:
        self._armed = True
        for folder in self._folders:
            mask = _CREATED | _MOVED_TO | _ONE_SHOT | _ONLY_FOLDERS
            self._call("inotify_add_watch", self._fd, folder, ctypes.c_uint32(mask))

    def came(self) -> bool:
        """Whether it has rung since this was asked last."""
        if not self._arrived:
            return False
        self._arrived = False
        return True

    def close(self) -> None:
        """Rings no more."""
        os.write(self._closer, b"x")
        self._thread.join()
        self._close_files()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        while self._closing not in [fd for fd, _ in poll.poll()]:
            if self._has_come(os.read(self._fd, 1 << 16)):
                # In this order: whoever hears the ring and arms again finds it disarmed.
                self._armed, self._arrived = False, True
                self._ring()

    @staticmethod
    def _has_come(events: bytes) -> bool:
        """Whether one of the events is more than the kernel's note that a watch is gone."""
        at, found = 0, False
        while at < len(events):
            _, mask, _, length = _HEAD.unpack_from(events, at)
            found |= bool(mask & (_CREATED | _MOVED_TO))
            at += _HEAD.size + length
        return found

    def _call(self, name: str, *arguments: object) -> int:
        function = getattr(self._libc, name, None)
        if function is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        answer = int(function(*arguments))
        if answer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return answer

    def _close_files(self) -> None:
        for fd in self._files:
            os.close(fd)


def watched(folders: Sequence[Path], ring: Callable[[], None]) -> Arrivals | None:
    """Arrivals in these folders; None where inotify can't be had, and looks must do.

    The user's instances or watches may be used up (EMFILE, ENOSPC; fs.inotify.max_user_…), the
    kernel or a sandbox's filter may be without it (ENOSYS, EPERM).
    """
    try:
        return Arrivals(folders, ring)
    except OSError:
        return None
