"""Programs that leave things behind if they are let: processes, files, memory, threads, time."""

from mixture import BUILD, ERROR, HANG, PASS, P, Program, wrapped

from pike_hpc.records import EvalStatus

MARK = "86399.375"
"""Seconds for which what they start would sleep: nobody else's `sleep` has this argument."""

SEGMENT = "pike-left"
"""Of shared memory that one of them makes and never removes."""

_ANY = PASS | ERROR | HANG | BUILD | frozenset({EvalStatus.REJECTED, EvalStatus.OUT_OF_MEMORY})
"""What such a program is judged to be does not matter here: what it leaves does."""
_FORWARD = "def forward(self, *args):\n"
_HONEST = "    return super().forward(*args)"
_ORPHAN = f"""
import os, signal
for _ in range(3):
    if not os.fork():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execlp("sleep", "sleep", "{MARK}")
"""
_FILES = """
import os
for number in range(20):
    with open(f"left-{number}", "wb") as file:
        file.write(os.urandom(1 << 20))
"""
_SHARED = f"""
from multiprocessing import resource_tracker, shared_memory
try:
    segment = shared_memory.SharedMemory(create=True, size=1 << 24, name="{SEGMENT}")
    resource_tracker.unregister(segment._name, "shared_memory")
except OSError:
    pass
"""
_THREADS = """
import threading
def spin():
    while True:
        pass
for _ in range(8):
    threading.Thread(target=spin, daemon=True).start()
"""
_PRINTS = "for _ in range(200):\n    print('x' * 100_000)\n"
_BODIES = (
    ("aborts", _FORWARD + "    import os\n    os.abort()", ""),
    ("kills itself", _FORWARD + "    import os\n    os.kill(os.getpid(), 9)", ""),
    ("exits", _FORWARD + "    raise SystemExit(0)", ""),
    ("orphans", _FORWARD + _HONEST, _ORPHAN),
    ("files", _FORWARD + _HONEST, _FILES),
    ("shared memory", _FORWARD + _HONEST, _SHARED),
    ("threads", _FORWARD + _HONEST, _THREADS),
    ("prints 20 MB", _FORWARD + _HONEST, _PRINTS),
    ("eats memory", _FORWARD + "    x = [bytearray(1 << 28) for _ in range(400)]\n" + _HONEST, ""),
    ("hangs", _FORWARD + "    while True:\n        pass", ""),
)


def _made(body, before, task):
    return lambda n: wrapped(task, body, f"{before}\n# {n}")


HOSTILE = tuple(
    Program(
        name=name, kind="hostile", task=P + "4", expected=_ANY, make=_made(body, before, P + "4")
    )
    for name, body, before in _BODIES
)
