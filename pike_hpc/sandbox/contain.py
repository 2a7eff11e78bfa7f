"""Starts a container's client: `python -I -S contain.py CLIENT ARGUMENT...`, such as podman run.

Contract: holds the writing end of the client's stdin, and writes nothing. The container's first
program (`sandbox.keep`) ends when that end is closed: when we die, however, even where a daemon
runs the container and whoever killed us cannot reach it. We die with our parent. Exits with the
client's status, 128+N for signal N. Standard library only, imports nothing of the project.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_SET_PDEATHSIG = 1


def main() -> int:
    """Run the client to its end."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    read, write = os.pipe()  # neither end is inherited but as stdin
    try:
        client = subprocess.Popen(sys.argv[1:], stdin=read)
    except OSError as error:
        os.write(2, f"sandbox: {sys.argv[1]}: {error.strerror}\n".encode())
        return 127
    os.close(read)
    status = client.wait()
    os.close(write)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
