"""Hold a process still so that no signal but SIGKILL reaches it: `python freezer.py PID`.

Slurm sends SIGCONT before it asks a job to leave, so SIGSTOP is not enough. Traced threads stay
where they are. Needs the right to trace; ends when the process is killed, or lets it go when it
ends itself.
"""

import ctypes
import os
import sys
from pathlib import Path

SEIZE, INTERRUPT = 0x4206, 0x4207
ALL_THREADS = 0x40000000
"""For waitpid: threads of others count as children while they are traced."""


def hold(pid: int) -> None:
    """Until the process is gone."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for request in (SEIZE, INTERRUPT):
            if ptrace(request, int(thread.name), None, None) == -1:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(thread))
    print("held", flush=True)
    while True:
        try:
            os.waitpid(-1, ALL_THREADS)  # also buries the dead, or their parent would never hear
        except ChildProcessError:
            return


if __name__ == "__main__":
    hold(int(sys.argv[1]))
