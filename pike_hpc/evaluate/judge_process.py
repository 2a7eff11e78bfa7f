"""The judge's process: takes orders from the lane and delivers what came of them.

Run by the lane as `main(fd, scratch)` with a socket. Between orders it is asleep.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pike_hpc.evaluate.built import Built
from pike_hpc.evaluate.judge import Judge
from pike_hpc.evaluate.judge_host import Host
from pike_hpc.evaluate.wire import Channel
from pike_hpc.machine import remove_tree
from pike_hpc.records import EvalRequest, Isolation, Task, decode, encode
from pike_hpc.sandbox import protect_memory


def serve(host: Host, make: Callable[..., Judge] = Judge) -> None:
    """Orders until the lane is gone; `make` makes who carries them out."""
    judge: Judge | None = None
    while (order := host.next_order()) is not None:
        what: str = order["order"]
        if what == "open":
            torch.set_num_threads(order["threads"])
            device = torch.device(order["device"])
            isolation = decode(Isolation, order["isolation"])
            judge = make(host, device, isolation, order["spares"])
            host.deliver(ready=True)
            continue
        assert judge is not None
        done: Any = None
        if what == "evaluate":
            request = decode(EvalRequest, order["request"])
            done = judge.evaluate(request, decode(Built, order["built"]), keep=order["keep"])
        elif what == "admit":
            done = judge.admit(decode(Task, order["task"]), order["small_only"])
        else:
            judge.release()
        found = {"short": judge.short, "crowded": judge.crowded}
        found |= {"refused": judge.refused, "left": judge.left}
        found["sound"] = judge.is_sound()
        host.deliver(done=encode(done), **found)


def main(fd: int, scratch: str) -> None:
    """Serve the lane at the other end of socket `fd`; sockets of runners go below `scratch`."""
    protect_memory()
    gc.freeze()  # torch's own objects: each look for garbage would go through all of them
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with socket.socket(fileno=fd) as link:
        try:
            serve(Host(Channel(link), Path(scratch)))
        finally:
            # The lane may have been killed: whoever of its processes ends last cleans up.
            remove_tree(Path(scratch))
            with contextlib.suppress(OSError):
                Path(scratch).parent.rmdir()
