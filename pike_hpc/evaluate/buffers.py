"""Anonymous shared memory whose size no one can change: the bytes that judge and runner share.

Sealed against shrinking, because a truncated mapping would kill the judge with SIGBUS when it
reads an answer. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref

_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE, _F_SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16
"""linux/fcntl.h; the fcntl module of Python 3.11 names them only on some builds."""


class SharedBuffer:
    """A memfd of fixed size, mapped here and handed to a runner by descriptor."""

    def __init__(self, name: str, size_bytes: int, *, ours_alone: bool = False) -> None:
        """Map `size_bytes` zeros.

        Args:
            name: what /proc calls it.
            size_bytes: for good.
            ours_alone: only this mapping can write it; runners may read it (Linux 5.1).
        """
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size_bytes)
        self.map = mmap.mmap(self.fd, size_bytes)
        seals = _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL
        seals |= _F_SEAL_FUTURE_WRITE if ours_alone else 0
        fcntl.fcntl(self.fd, _F_ADD_SEALS, seals)
        self.size_bytes = size_bytes
        self._closing = weakref.finalize(self, os.close, self.fd)

    def close(self) -> None:
        """Let go of the descriptor; the mapping goes with the last tensor over it.

        Done by itself when nobody holds the buffer any more. Can be called again.
        """
        self._closing()


def sealed_file(name: str, content: bytes) -> int:
    """The descriptor of a memfd that holds `content` and can never be written again."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    every = _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE | _F_SEAL_SEAL
    fcntl.fcntl(fd, _F_ADD_SEALS, every)
    return fd
