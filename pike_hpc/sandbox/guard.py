"""What a trusted process does for itself before anything untrusted of the same uid runs.

Contract: afterwards no process of the same uid can read or write our memory or environment
through /proc or ptrace, and we leave no core file. It does not protect from root.
"""

from __future__ import annotations

import ctypes
import os

_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Make this process undumpable: /proc/self/{mem,environ,…} then belong to root.

    To be repeated after each exec or change of uid. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_DUMPABLE)")
