"""A process to be attacked: run as `python victim.py guarded|plain NONCE`.

Contract: standard library only, imports nothing of the project. Says "ready" and lives until its
stdin ends. `guarded` hides its memory as a judge does; both carry the nonce in their command
line and in their environment. It does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import sys

if __name__ == "__main__":
    if sys.argv[1] == "guarded":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    os.write(1, b"ready\n")
    sys.stdin.read()
